"""Unpack files, and no more than a sound file can hold: a small one may be made to unpack to any size."""

from __future__ import annotations

import lzma
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    import pyarrow as pa

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_FREE_BYTES, _MOST_RATIO = 1 << 26, 100  # traces shrink to a tenth or a fortieth
_PIECE_BYTES = 1 << 22
_CHUNK_BYTES = 1 << 16  # given at a time: what is left of it is copied for each piece that comes out
_ZEROS = re.compile(rb"\0*")


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
    limit, found, at = most_bytes(len(content)), bytearray(), 0
    while at < len(content):
        member = _xz_member if content.startswith(_XZ, at) else _gzip_member
        at = member(content, at, found, limit)
        zeros = _ZEROS.match(content, at)
        at = zeros.end() if zeros else at
    return bytes(found)


def _gzip_member(packed: bytes, at: int, found: bytearray, limit: int) -> int:
    """Unpack the member at `at` to the end of `found`; return where it ends."""
    gzip = zlib.decompressobj(wbits=31)
    while not gzip.eof:
        chunk = gzip.unconsumed_tail
        if not chunk:
            chunk = packed[at : at + _CHUNK_BYTES]
            at += len(chunk)
        piece = gzip.decompress(chunk, _PIECE_BYTES)
        if not (chunk or piece or gzip.eof):
            raise EOFError("the gzip stream ends early")
        _grow(found, piece, limit)
    return at - len(gzip.unused_data)


def _xz_member(packed: bytes, at: int, found: bytearray, limit: int) -> int:
    """As `_gzip_member`, of xz, which keeps what it was given until it needs more."""
    xz = lzma.LZMADecompressor(memlimit=_FREE_BYTES * 4)
    while not xz.eof:
        if xz.needs_input and at == len(packed):
            raise EOFError("the xz stream ends early")
        chunk = packed[at : at + _CHUNK_BYTES] if xz.needs_input else b""
        at += len(chunk)
        _grow(found, xz.decompress(chunk, _PIECE_BYTES), limit)
    return at - len(xz.unused_data)


def _grow(found: bytearray, piece: bytes, limit: int) -> None:
    found += piece
    if len(found) > limit:
        raise ValueError(f"it unpacks to more than {_MOST_RATIO} times its size")
