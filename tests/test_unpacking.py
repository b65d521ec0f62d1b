"""Files that are packed, in whatever pieces their tools make of them."""

from __future__ import annotations

import gzip
import lzma
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from traceflow import unpacking
from traceflow.errors import TraceflowError
from traceflow.unpacking import unpacked

Pack = Callable[[bytes], bytes]
CONTENT = b"".join(b'{"name": "op%d"},\n' % random.Random(seed).randrange(10**9) for seed in range(2000))
SPLITS = [1, 100, 4096, len(CONTENT)]  # bytes of each member


@pytest.fixture(params=[1, 7, 1 << 16])
def given(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much the decompressors are given at a time, and how much they return."""
    monkeypatch.setattr(unpacking, "_CHUNK_BYTES", request.param)
    monkeypatch.setattr(unpacking, "_PIECE_BYTES", max(request.param // 2, 3))


@pytest.mark.usefixtures("given")
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
@pytest.mark.parametrize("size", SPLITS)
@pytest.mark.parametrize("filling", [b"", bytes(512)])
def test_members_follow_each_other(pack: Pack, size: int, filling: bytes, tmp_path: Path) -> None:
    content = CONTENT[: 40 * size]
    file = tmp_path / "packed"
    file.write_bytes(b"".join(pack(content[at : at + size]) for at in range(0, len(content), size)) + filling)
    assert unpacked(file) == content


@pytest.mark.usefixtures("given")
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
@pytest.mark.parametrize("lost", [1, 5, 12, 500])
@pytest.mark.parametrize("whole", [b"", CONTENT])
def test_a_member_that_ends_early_is_refused(pack: Pack, lost: int, whole: bytes, tmp_path: Path) -> None:
    file = tmp_path / "packed"
    file.write_bytes((pack(whole) if whole else b"") + pack(CONTENT)[:-lost])
    with pytest.raises(TraceflowError, match=r"TF105.*ends early"):
        unpacked(file)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_what_follows_and_is_no_member_is_refused(pack: Pack, tmp_path: Path) -> None:
    file = tmp_path / "packed"
    file.write_bytes(pack(CONTENT) + b"something else")
    with pytest.raises(TraceflowError, match="TF105"):
        unpacked(file)


def test_what_is_packed_is_not_handed_on_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[int] = []

    class Counted:
        def __init__(self, wbits: int) -> None:
            self._of = zlib.decompressobj(wbits=wbits)

        def decompress(self, packed: bytes, limit: int) -> bytes:
            handed.append(len(packed))
            return self._of.decompress(packed, limit)

        def __getattr__(self, name: str) -> object:
            return getattr(self._of, name)

    monkeypatch.setattr(unpacking, "zlib", SimpleNamespace(decompressobj=Counted, error=zlib.error))
    monkeypatch.setattr(unpacking, "_CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr(unpacking, "_PIECE_BYTES", 1 << 10)
    file = tmp_path / "packed"
    file.write_bytes(gzip.compress(CONTENT * 50))
    assert unpacked(file) == CONTENT * 50
    assert sum(handed) < len(CONTENT) * 50
