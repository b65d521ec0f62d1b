"""Archives of arrays that are damaged inside, where the list of their files is whole."""

from __future__ import annotations

import io
import zipfile

import numpy as np
from numpy.lib.format import magic


def cannot_be_unpacked() -> bytes:
    """An archive with a byte of its compressed data changed."""
    file = io.BytesIO()
    np.savez_compressed(file, version=np.arange(1000))
    content = bytearray(file.getvalue())
    content[90] ^= 255
    return bytes(content)


def cannot_be_held() -> bytes:
    """An archive with an array of 80 TB, as it says."""
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (9999999999999,), }".ljust(117) + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("version.npy", magic(1, 0) + len(header).to_bytes(2, "little") + header)
    return file.getvalue()


def single_array() -> bytes:
    """An array that is in no archive."""
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


DAMAGED = [cannot_be_unpacked(), cannot_be_held(), single_array()]
