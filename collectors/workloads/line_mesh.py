"""The devices of a workload, in a line. Those of the CPU are simulated, so that many of them fit on any host."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    from jax.sharding import Mesh


def line_mesh(devices: int, axis: str, *, platform: str = "cpu") -> Mesh:
    """A one-dimensional mesh over the first `devices` devices, of all processes where there are several.

    Args:
        devices: How many.
        axis: What to call the dimension.
        platform: Which: "cpu", where JAX simulates as many as are asked for before it starts; "gpu", "tpu".

    Raises:
        TraceflowError: TF115 when JAX has none of the platform, or fewer; once started, it cannot add any.
    """
    import jax

    with suppress(RuntimeError):  # JAX runs already
        jax.config.update("jax_num_cpu_devices", devices)
    try:
        found = jax.devices(platform)[:devices]
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise TraceflowError("TF115", f"cannot use devices of {platform}", why, "choose another platform") from error
    if len(found) < devices:
        why = f"this process has started JAX with {len(found)}"
        raise TraceflowError("TF115", f"cannot use {devices} devices of {platform}", why, "do it in a fresh process")
    return jax.sharding.Mesh(np.array(found), (axis,))
