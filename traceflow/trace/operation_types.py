"""What the types of an operation table mean: which of them compute, and who meets whom in the others."""

from __future__ import annotations

FORWARD, BACKWARD = "forward-compute", "backward-compute"
SENDS = {"forward-send": FORWARD, "backward-send": BACKWARD}
RECEIVES = {"forward-recv": FORWARD, "backward-recv": BACKWARD}
PARAMETERS, GRADIENTS, LATE_GRADIENTS = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
WITHIN_STAGE = (PARAMETERS, GRADIENTS, LATE_GRADIENTS)
WITHIN_PIPELINE = ("embedding-grads-all-reduce",)
EVERYBODY = ("optimizer-clip-main-grad",)
UNSPLIT = ("layernorm-grads-all-reduce",)  # among workers that the table does not tell apart
COMMUNICATION = frozenset((*SENDS, *RECEIVES, *WITHIN_STAGE, *WITHIN_PIPELINE, *EVERYBODY, *UNSPLIT))
