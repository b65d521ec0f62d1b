"""PyTorch's flight recorder: which collectives a process issued, on which group, and in which order.

Backends without arguments of their own in the trace, such as gloo, can be understood with it.
"""

from __future__ import annotations

import json
from typing import Any

from traceflow.result import Json

Groups = dict[str, dict[str, Json]]

# What gives the records of NCCL, and those of the backends of the CPU. Neither is public, nor in every build.
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


def process_groups() -> Groups:
    """The groups that this process is in, by name; empty where there are none.

    They are spelled as the recorder spells those of NCCL: name, description, and the ranks as text.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return {}
    listed: list[dict[str, Any]] = dist.distributed_c10d._get_all_pg_configs()  # noqa: SLF001  # nothing public lists them
    return {
        group["pg_name"]: {"name": group["pg_name"], "desc": group["pg_desc"], "ranks": str(group["ranks"])}
        for group in listed
    }


def flight_recording(groups: Groups) -> dict[str, Json] | None:
    """What the recorders of all backends hold, with `groups` as their process groups; None without groups.

    Source: the recorder's format as JSON, version 2.10. Of itself it knows the groups of NCCL only.
    """
    if not groups:
        return None
    from torch._C import _distributed_c10d

    dumps = (vars(_distributed_c10d).get(name) for name in _DUMPS)
    recorders = [json.loads(dump()) for dump in dumps if dump is not None]
    entries = [entry for recorder in recorders for entry in recorder.get("entries", ())]
    return {**(recorders[0] if recorders else {}), "pg_config": dict(groups), "entries": entries}
