"""Payloads of NVTX ranges: what a library says of a call beside its name, as JSON or by a schema of its own.

A payload is a header (four integers of 32 bits, of which the third is the schema's number, then the sizes of the payload
and of both, of 64 bits) and the values, each where the schema says. Which numbers mean which type is the order of
`NVTX_PAYLOAD_ENTRY_TYPE_*` in NVTX's own header.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from traceflow.trace._nsight_tables import UNKNOWN, Tables
from traceflow.trace.model import Text

_HEADER = struct.Struct("<IIIIQQ")
_TYPES = {
    **dict(zip(range(3, 7), "hHiI", strict=True)),  # short, unsigned short, int, unsigned int
    **dict(zip(range(7, 11), "qQqQ", strict=True)),  # long and long long
    **dict(zip(range(11, 19), "bBhHiIqQ", strict=True)),  # of given widths
    22: "Q",  # size_t
}
_LARGEST_OFFSET = 1 << 16


class _Entry(NamedTuple):
    """One value of a schema."""

    name: str
    layout: str
    offset: int


def binary_payloads(tables: Tables) -> Text:
    """Per row of `NVTX_EVENTS`, its binary payload as JSON; None without one, or where no schema describes it."""
    read = _reader(_schemas(tables))
    return np.array([read(blob) for blob in tables.blobs("NVTX_EVENTS", "binaryData")], object)


def _schemas(tables: Tables) -> dict[int, list[_Entry]]:
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    found = tables.integers(table, ("schemaId", "type", "offset"))
    names = tables.texts(table, "name").tolist()
    schemas: dict[int, list[_Entry]] = {}
    for name, *numbers in zip(names, *(found[column].tolist() for column in found), strict=True):
        number, kind, offset = numbers
        offset = 0 if offset == UNKNOWN else offset  # the first value stands at the start
        if name and kind in _TYPES and 0 <= offset < _LARGEST_OFFSET:
            schemas.setdefault(number, []).append(_Entry(name, f"<{_TYPES[kind]}", offset))
    return schemas


def _reader(schemas: dict[int, list[_Entry]]) -> Callable[[bytes | None], str | None]:
    @cache
    def read(blob: bytes | None) -> str | None:
        if blob is None or len(blob) < _HEADER.size:
            return None
        content = blob[_HEADER.size :]
        there = [
            entry
            for entry in schemas.get(_HEADER.unpack_from(blob)[2], [])
            if entry.offset + struct.calcsize(entry.layout) <= len(content)
        ]
        said = {entry.name: struct.unpack_from(entry.layout, content, entry.offset)[0] for entry in there}
        return json.dumps(said) if said else None

    return read
