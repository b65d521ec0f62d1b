"""Intent in a file, for what is audited from the command line.

A TOML file with any of these::

    batch = "data"                        # the axes that split the batch
    expect = ["all-reduce(data)"]         # the collectives that may happen, and none other

    [mesh]                                # where the program names none
    data = 2
    model = 4

    [params]                              # arguments, by a pattern of their names
    "w*" = "P('data', None)"

    [activations]                         # arrays within the program, by a pattern of their scopes
    "*/mlp/tanh" = "P('data', 'model')"
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from traceflow.errors import TraceflowError
from traceflow.intent.intent import Intent, intent


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    batch: str | list[str] | None = None
    expect: list[str] | None = None
    mesh: dict[str, int] | None = None
    params: dict[str, str] | None = None
    activations: dict[str, str] | None = None


def read_intent(path: Path) -> Intent:
    """Read an intent from a TOML file.

    Raises:
        TraceflowError: TF101 where the file cannot be read, TF147 where it is no intent, TF141 and TF143 where its
            mesh or a spec is none.
    """
    try:
        said = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _Said)
    except OSError as error:
        why = error.strerror or "it cannot be opened"
        raise TraceflowError("TF101", f"cannot read {path}", why, "check the path") from error
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        hint = "it may have batch, expect, mesh, params and activations"
        raise TraceflowError("TF147", f"no intent in {path}", str(error), hint) from error
    return intent(
        batch=said.batch, expect=said.expect, mesh=said.mesh, params=said.params, activations=said.activations
    )
