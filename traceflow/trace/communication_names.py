"""Which kernels communicate, by their names: one table that grows as libraries do, and patterns that users add.

A pattern is looked for where a word starts, so that `oneccl` is none of NCCL's and ROCm's copy kernel
`__amd_rocclr_copyBuffer` is none of RCCL's. The first pattern that is found decides. An operation is spelled
as PyTorch spells it in the arguments of a collective; it is `unknown` where the name does not tell.

Names that no pattern knows may still hint at communication. A hint makes nothing communicate: it is told to the user,
who knows what the kernel does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import cache

from traceflow.errors import TraceflowError

_NCCL = r"ncclSym\w*Kernel_|nccl(?:Dev)?Kernel_|nccl(?=[A-Z]\w*Kernel)|rccl(?:Dev)?Kernel_|rccl_"
_DEEP_EP = r"(?:deep_ep|nccl_ep|uccl|mori|primus_turbo)::(?:\w+::)*|(?:::ep::)?(?:intranode|internode|internode_ll|hybrid_ep)::"
_CUSTOM = r"(?:vllm|sglang|aiter|flashinfer|trtllm|tensorrt_llm)::(?:\w+::)*"

TABLE: tuple[tuple[str, str, str], ...] = (
    # pattern, library, operation
    (rf"(?:{_NCCL})AllReduce", "nccl", "allreduce"),
    (rf"(?:{_NCCL})AllGather", "nccl", "allgather"),
    (rf"(?:{_NCCL})ReduceScatter", "nccl", "reduce_scatter"),
    (rf"(?:{_NCCL})Broadcast", "nccl", "broadcast"),
    (rf"(?:{_NCCL})Reduce", "nccl", "reduce"),
    (rf"(?:{_NCCL})SendRecv", "nccl", "send_recv"),
    (rf"(?:{_NCCL})(?:AllToAll|AlltoAll)", "nccl", "all_to_all"),
    (rf"{_NCCL}", "nccl", "unknown"),
    (r"mscclKernel_Sum", "msccl", "allreduce"),
    (r"mscclKernel_", "msccl", "unknown"),
    (r"mscclpp\w*(?:::\w+)*(?:_|::)all_?reduce", "msccl++", "allreduce"),
    (r"mscclpp\w*(?:::\w+)*(?:_|::)all_?gather", "msccl++", "allgather"),
    (r"mscclpp", "msccl++", "unknown"),
    (r"nvshmemx?i?_\w*(?:alltoall|all_to_all)", "nvshmem", "all_to_all"),
    (r"nvshmemx?i?_\w*(?:fcollect|allgather)", "nvshmem", "allgather"),
    (r"nvshmemx?i?_\w*reducescatter", "nvshmem", "reduce_scatter"),
    (r"nvshmemx?i?_\w*reduce", "nvshmem", "allreduce"),
    (r"nvshmemx?i?_\w*broadcast", "nvshmem", "broadcast"),
    (r"nvshmemx?i?_\w*(?:barrier|sync)", "nvshmem", "barrier"),
    (r"nvshmemx?i?_\w*(?:put|get|signal)", "nvshmem", "send_recv"),
    (rf"(?:{_DEEP_EP})(?:cached_)?(?:notify_)?dispatch", "deep_ep", "dispatch"),
    (rf"(?:{_DEEP_EP})(?:cached_)?(?:notify_)?combine", "deep_ep", "combine"),
    (rf"(?:{_DEEP_EP})(?:barrier|clean_low_latency_buffer)", "deep_ep", "barrier"),
    (r"multimem_all_reduce|(?:one|two)_shot_(?:multimem_)?all_reduce", "symmetric memory", "allreduce"),
    (r"multimem_one_shot_(?:all_)?reduce", "symmetric memory", "allreduce"),
    (r"multimem_all_gather", "symmetric memory", "allgather"),
    (r"(?:multimem_)?(?:one|two)_shot_reduce_scatter|reduce_scatter_multimem", "symmetric memory", "reduce_scatter"),
    (r"all_to_all_vdev", "symmetric memory", "all_to_all"),
    (r"(?:\w+::)*cross_device_reduce_", "custom", "allreduce"),
    (rf"(?:{_CUSTOM})(?:custom_|quick_)?all_?reduce", "custom", "allreduce"),
    (r"allreduce_(?:prototype_)?twoshot|(?:one|two)shot_?[aA]ll_?[rR]educe\w*Kernel", "custom", "allreduce"),
    (r"(?:lamport|moe)?_?allreduce_fusion_kernel|lamport\w*[aA]ll_?[rR]educe", "custom", "allreduce"),
    (r"oneccl_all_?reduce|ccl::\w*all_?reduce", "oneccl", "allreduce"),
    (r"oneccl_all_?gatherv?|ccl::\w*all_?gather", "oneccl", "allgather"),
    (r"oneccl_reduce_?scatter|ccl::\w*reduce_?scatter", "oneccl", "reduce_scatter"),
    (r"oneccl_all_?to_?allv?|ccl::\w*all_?to_?all", "oneccl", "all_to_all"),
    (r"oneccl_broadcast|ccl::\w*broadcast", "oneccl", "broadcast"),
    (r"oneccl_|ccl::", "oneccl", "unknown"),
    (r"gloo:all_?reduce", "gloo", "allreduce"),
    (r"gloo:all_?gather", "gloo", "allgather"),
    (r"gloo:reduce_?scatter", "gloo", "reduce_scatter"),
    (r"gloo:all_?to_?all", "gloo", "all_to_all"),
    (r"gloo:broadcast", "gloo", "broadcast"),
    (r"gloo:reduce", "gloo", "reduce"),
    (r"gloo:gather", "gloo", "gather"),
    (r"gloo:scatter", "gloo", "scatter"),
    (r"gloo:send", "gloo", "send"),
    (r"gloo:recv", "gloo", "recv"),
    (r"gloo:(?:monitored_?)?barrier", "gloo", "barrier"),
    (r"gloo:", "gloo", "unknown"),
)
"""What a kernel's or annotation's name says: pattern, library, operation; the first that is found."""

_OPERATIONS = (
    (r"all_?reduce", "allreduce"),
    (r"all_?gather", "allgather"),
    (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?(?:to|2)_?all|a2a", "all_to_all"),
    (r"broadcast", "broadcast"),
    (r"barrier", "barrier"),
    (r"dispatch", "dispatch"),
    (r"combine", "combine"),
    (r"put|get|send|recv", "send_recv"),
)
"""What the name of a kernel that users call communication tells of its operation."""

_COLLECTIVE = re.compile(r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all")
_TRANSFER = re.compile(
    r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?i:comm|dispatch|combine|a2a|put|get|send|recv|sendrecv|p2p|rdma)(?![a-z])"
)
_COMPUTES = re.compile(
    r"(?:void )?(?:at|cub|thrust|rocprim|cutlass|ck|cask\w*|cudnn|fbgemm_gpu)::|triton_|(?i:.*fusion)"
)
_ARGUMENTS = re.compile(r"\(anonymous namespace\)::|[<(].*", re.DOTALL)

# A digit may stand before a name: mangled names carry lengths.
_WORD_START = r"(?<![A-Za-z_])"


class Hint(Enum):
    """How much the name of a kernel that nothing recognises says of communication."""

    COLLECTIVE = "names a collective"
    TRANSFER = "has a word for moving data between devices"


def recognise(name: str, also: tuple[str, ...] = ()) -> tuple[str, str] | None:
    """Library and operation of a communication kernel or annotation, None for anything else.

    Args:
        name: As the trace has it, with or without template arguments and parameters.
        also: Regular expressions of the user for more kernels that communicate, looked for anywhere in a name. What
            they find is of the library `user`; words in the name, such as all_gather, tell the operation.

    Example:
        >>> recognise("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
        ('nccl', 'allreduce')
        >>> recognise("__amd_rocclr_copyBuffer")
        >>> recognise("my_all_gather_kernel", also=("^my_all_",))
        ('user', 'allgather')
    """
    if _any_pattern().search(name) is not None:
        return next((library, operation) for pattern, library, operation in TABLE if _compiled(pattern).search(name))
    return ("user", _operation(name)) if any(pattern.search(name) for pattern in _users(also)) else None


def usable(patterns: Iterable[str]) -> tuple[str, ...]:
    """Patterns of the user as `recognise` takes them.

    Raises:
        TraceflowError: TF112 for one that is no regular expression.
    """
    given = tuple(patterns)
    try:
        _users(given)
    except re.error as error:
        what = f"cannot look for communication by {error.pattern!r}"
        raise TraceflowError("TF112", what, str(error), "give a regular expression") from error
    return given


def hint(name: str) -> Hint | None:
    """What the name of a kernel says of communication that no pattern recognises; None where it says nothing.

    Only the function's own name counts, without template arguments and parameters. Libraries that compute, such as
    ATen, and what compilers fuse use the same words for other things.

    Example:
        >>> hint("void my_lib::moe_a2a_put<float>(float*)")
        <Hint.TRANSFER: 'has a word for moving data between devices'>
        >>> hint("void at::native::index_put_kernel<float>(float*)")
    """
    if _COMPUTES.match(name):
        return None
    own = _ARGUMENTS.sub("", name)
    if _COLLECTIVE.search(own):
        return Hint.COLLECTIVE
    return Hint.TRANSFER if _TRANSFER.search(own) else None


def _operation(name: str) -> str:
    words = (operation for pattern, operation in _OPERATIONS if re.search(pattern, name, re.IGNORECASE))
    return next(words, "unknown")


@cache
def _users(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(f"{_WORD_START}(?:{pattern})")


@cache
def _any_pattern() -> re.Pattern[str]:
    return re.compile(f"{_WORD_START}(?:{'|'.join(f'(?:{pattern})' for pattern, _, _ in TABLE)})")
