"""The words of Kineto files that mean something, and compiled kernels that find them. Imported only inside functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceflow.compiled import Compiled
from traceflow.trace._text_columns import load, signed

Int64 = NDArray[np.int64]

# Members of an event whose values are noted; those from CORRELATION on are arguments.
(PH, CATEGORY, NAME, PID, TID, TS, DUR, ID, ARGS) = range(1, 10)
(CORRELATION, EXTERNAL, STREAM, DEVICE, COLLECTIVE, DTYPE, NELEMS, IN_SPLITS, OUT_SPLITS) = range(10, 19)
(GROUP_NAME, GROUP_RANKS, GROUP_SIZE, SEQUENCE, ROOT, SOURCE, DESTINATION) = range(19, 26)
(SYNC, AWAITED_STREAM, RECORD_CORRELATION, FINISHED) = range(26, 30)
(BYTES, ALLOCATED, RESERVED, DEVICE_KIND, DEVICE_NUMBER) = range(30, 35)
(SHAPES, TYPES, VALUES, FIELDS) = range(35, 39)

# What becomes of an event: up to UNKNOWN a span of time, then records of their own kind, then nothing.
(OPERATOR, ANNOTATION, PYTHON, RUNTIME, KERNEL, MEMORY, QUEUE, UNKNOWN, SYNC_RECORD, DATA_FLOW) = range(40, 50)
(LAUNCH_FLOW, DEVICE_ANNOTATION, PROFILER, OVERHEAD, INSTANT, COUNTER, METADATA) = range(50, 57)
(OTHER_PHASE, EMPTY, DAMAGED, ALLOCATION, OUTCOMES) = range(57, 62)
TRACE_EVENTS = OUTCOMES


def _words(texts: str, first: int, step: int = 1) -> dict[str, int]:
    return {text: first + step * i for i, text in enumerate(texts.split("|"))}


_WORDS = {
    **_words("ph|cat|name|pid|tid|ts|dur|id|args|correlation|External id|stream|device", PH),
    **_words("Collective name|dtype|In msg nelems|In split size|Out split size", COLLECTIVE),
    **_words("Process Group Name|Process Group Ranks|Group size|Seq|Rank|Src Rank|Dst Rank", GROUP_NAME),
    **_words("cuda_sync_kind|wait_on_stream|wait_on_cuda_event_record_corr_id|finished", SYNC),
    **_words("Bytes|Total Allocated|Total Reserved|Device Type|Device Id", BYTES),
    **_words("Input Dims|Input type|Concrete Inputs", SHAPES),
    "Input dims": SHAPES,
    "bytes": BYTES,
    "external id": EXTERNAL,
    "Process Group ID": GROUP_NAME,
    # Capitalised: as exporters wrote them before 2022.
    **_words("cpu_op|Operator", OPERATOR, 0),
    "user_annotation": ANNOTATION,
    "python_function": PYTHON,
    **_words("cuda_runtime|cuda_driver|xpu_runtime|xpu_driver|mtia_runtime|glow_runtime|Runtime", RUNTIME, 0),
    **_words("privateuse1_runtime|privateuse1_driver", RUNTIME, 0),
    **_words("kernel|concurrent_kernel|Kernel", KERNEL, 0),
    **_words("gpu_memcpy|gpu_memset|Memcpy|Memset", MEMORY, 0),
    "mtia_ccp_events": QUEUE,
    **_words("cuda_sync|xpu_sync", SYNC_RECORD, 0),
    **_words("fwdbwd|forward_backward", DATA_FLOW, 0),
    **_words("ac2g|async_cpu_to_gpu|async_gpu", LAUNCH_FLOW, 0),
    "gpu_user_annotation": DEVICE_ANNOTATION,
    "Trace": PROFILER,
    "overhead": OVERHEAD,
    "[memory]": ALLOCATION,
    "traceEvents": TRACE_EVENTS,
}
_MEANING = np.array([0, *_WORDS.values()], np.int64)
_LENGTH = np.array([0, *map(len, _WORDS)], np.int64)
_LONGEST = int(_LENGTH.max())
SLOT_BITS = 10


def _spelling() -> NDArray[np.uint64]:
    """Each word in pieces of eight bytes, the last of which ends where the word ends."""
    pieces = np.zeros((len(_WORDS) + 1, (_LONGEST + 7) // 8), np.uint64)
    for place, word in enumerate(_WORDS, 1):
        for i in range(0, len(word), 8):
            at = min(i, max(len(word) - 8, 0))
            pieces[place, i // 8] = int.from_bytes(word[at : at + 8].encode(), "little")
    return pieces


def _perfect_hash() -> tuple[np.uint64, Int64]:
    """A factor that takes first piece plus length to a slot of its own for each word, and the words by slot."""
    keys = _PIECES[1:, 0] + _LENGTH[1:].astype(np.uint64)
    for factor in np.arange(1, 2**16, 2).astype(np.uint64) * _MIX:
        slots = (keys * factor) >> np.uint64(64 - SLOT_BITS)
        if len(np.unique(slots)) == len(slots):
            break
    word_at = np.zeros(1 << SLOT_BITS, np.int64)
    word_at[slots.astype(np.int64)] = np.arange(1, len(slots) + 1)
    return factor, word_at


_ALL, _MIX = np.uint64(2**64 - 1), np.uint64(0x9E3779B97F4A7C15)
_PIECES = _spelling()
_FACTOR, _WORD_AT = _perfect_hash()


@Compiled
def _first_piece(start: int, stop: int) -> np.uint64:
    first = load(start)
    return first if stop - start >= 8 else first & ~(_ALL << np.uint64(8 * (stop - start)))


@Compiled
def slot_of(start: int, stop: int) -> int:
    """Where to look for a word, by its first piece and its length."""
    key = _first_piece(start, stop) + np.uint64(stop - start)
    return signed((key * _FACTOR) >> np.uint64(64 - SLOT_BITS))


@Compiled
def meaning_of(start: int, stop: int) -> int:
    """Meaning of a word of `_WORDS`, else 0."""
    length = stop - start
    if length <= 0 or length > _LONGEST:
        return 0
    place = _WORD_AT[slot_of(start, stop)]
    if _LENGTH[place] != length or _PIECES[place, 0] != _first_piece(start, stop):
        return 0
    for i in range(8, length, 8):
        if load(start + min(i, length - 8)) != _PIECES[place, i >> 3]:
            return 0
    return _MEANING[place]
