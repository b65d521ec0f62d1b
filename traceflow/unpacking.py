"""Unpack files, and no more than a sound file can hold: a small one may be made to unpack to any size."""

from __future__ import annotations

import lzma
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    import pyarrow as pa

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_FREE_BYTES, _MOST_RATIO = 1 << 26, 100  # traces shrink to a tenth or a fortieth
_PIECE_BYTES = 1 << 22


def most_bytes(packed_bytes: int) -> int:
    """How much a packed file of some size may unpack to: 64 MiB, and 100 times its size.

    Example:
        >>> most_bytes(0), most_bytes(1_000_000)
        (67108864, 167108864)
    """
    return _FREE_BYTES + _MOST_RATIO * packed_bytes


def unpacked(path: Path) -> bytes:
    """The content of a file, unpacked where it is packed by gzip or xz.

    Args:
        path: The file.

    Raises:
        TraceflowError: TF105 where it cannot be unpacked to its end, or unpacks to more than `most_bytes`.
    """
    content = path.read_bytes()
    if not content.startswith((_GZIP, _XZ)):
        return content
    try:
        return _inflated(content)
    except (EOFError, zlib.error, lzma.LZMAError, ValueError, MemoryError) as error:
        raise TraceflowError("TF105", f"cannot read {path}", str(error), "copy the file again") from error


def parquet_table(path: Path) -> pa.Table:
    """The table in a Parquet file, whose columns may repeat one value any number of times in a few bytes.

    Args:
        path: The file.

    Raises:
        TraceflowError: TF105 where it holds more values of 8 bytes than `most_bytes`.
        pyarrow.ArrowException: where it is damaged.
    """
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)  # without what a dataset of many files would import
    if 8 * file.metadata.num_rows * file.metadata.num_columns > most_bytes(path.stat().st_size):
        why = f"its {file.metadata.num_rows:,} rows are more than a table of its size holds"
        raise TraceflowError("TF105", f"cannot read {path}", why, "write the table again")
    return file.read()


def _inflated(content: bytes) -> bytes:
    """All members of a packed file, one after another; some tools fill the last block with zeros."""
    limit, found, rest = most_bytes(len(content)), bytearray(), content
    while rest:
        rest = _member(rest, found, limit).lstrip(b"\0")
    return bytes(found)


def _member(packed: bytes, found: bytearray, limit: int) -> bytes:
    """Unpack one member to the end of `found`; return what follows it."""
    if packed.startswith(_XZ):
        xz = lzma.LZMADecompressor(memlimit=_FREE_BYTES * 4)
        _grow(found, xz.decompress(packed, _PIECE_BYTES), limit)
        while not xz.eof:
            piece = xz.decompress(b"", _PIECE_BYTES)
            if not piece and xz.needs_input:
                raise EOFError("the xz stream ends early")
            _grow(found, piece, limit)
        return xz.unused_data
    gzip = zlib.decompressobj(wbits=31)
    _grow(found, gzip.decompress(packed, _PIECE_BYTES), limit)
    while not gzip.eof:
        tail = gzip.unconsumed_tail
        piece, ended = gzip.decompress(tail, _PIECE_BYTES), bool(gzip.eof)
        if not piece and not ended and gzip.unconsumed_tail == tail:
            raise EOFError("the gzip stream ends early")
        _grow(found, piece, limit)
    return gzip.unused_data


def _grow(found: bytearray, piece: bytes, limit: int) -> None:
    found += piece
    if len(found) > limit:
        raise ValueError(f"it unpacks to more than {_MOST_RATIO} times its size")
