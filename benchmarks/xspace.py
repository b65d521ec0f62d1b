"""Write an XSpace as XLA records it on CPU, and measure how many of its events are read in a second.

Four devices work off the operations of one program, step by step, each on a thread of its own, and a Python thread
calls it. With statistics, an operation says what it is, of which program and run, and on which device; without, there
are only names and times. The bytes are put together here, so that no reader is measured against its own writer.

    xspace.py --events 1000000 --out build/bench            # with statistics
    xspace.py --events 1000000 --out build/bench --plain    # without
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

DEVICES, OPERATIONS = 4, 50
CALLS = 8  # of Python for each step
STEP_PS, OPERATION_PS = 400_000_000, 7_000_000
STATS = ("hlo_op", "hlo_module", "program_id", "run_id", "device_ordinal", "_pt", "_p")
PROGRAM = 4_211_903_117
FIRST_TEXT = 100  # number of the first text that is a value


def varint(value: int) -> bytes:
    """A number in pieces of seven bits."""
    value %= 2**64
    pieces = bytearray()
    while value > 127:
        pieces.append(value & 127 | 128)
        value >>= 7
    return bytes([*pieces, value])


def number(field: int, value: int) -> bytes:
    """A field that holds a number."""
    return varint(field << 3) + varint(value)


def content(field: int, value: bytes) -> bytes:
    """A field that holds a text or a message."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def stat(name: str, field: int, value: int) -> bytes:
    """A statistic of an event: 3 for an unsigned number, 4 for a signed one, 7 for a text by its number."""
    return content(4, number(1, STATS.index(name) + 1) + number(field, value))


def event(kind: int, offset_ps: int, duration_ps: int, stats: bytes = b"") -> bytes:
    """An event of a line."""
    return content(4, number(1, kind) + number(2, offset_ps) + number(3, duration_ps) + stats)


def worker(device: int, steps: int, *, plain: bool) -> Iterator[bytes]:
    """What one device does."""
    said = [
        b""
        if plain
        else stat("hlo_op", 7, FIRST_TEXT + one)
        + stat("hlo_module", 7, FIRST_TEXT + OPERATIONS)
        + stat("program_id", 3, PROGRAM)
        + stat("device_ordinal", 4, device)
        for one in range(OPERATIONS)
    ]
    for step in range(steps):
        run = b"" if plain else stat("run_id", 4, step)
        for one in range(OPERATIONS):
            start_ps = step * STEP_PS + one * OPERATION_PS + device * 1_000
            yield event(one + 1, start_ps, OPERATION_PS - 999_000, said[one] + run)


def python(steps: int, *, plain: bool) -> Iterator[bytes]:
    """What the thread does that calls the program."""
    for step in range(steps):
        for call in range(CALLS):
            stats = b"" if plain or call else stat("run_id", 4, step) + stat("_pt", 4, 5) + stat("_p", 4, step)
            yield event(OPERATIONS + 1 + call, step * STEP_PS + call * OPERATION_PS, OPERATION_PS // 2, stats)


def line(number_of: int, name: str, events: Iterator[bytes]) -> bytes:
    """A thread."""
    return content(3, number(1, number_of) + content(2, name.encode()) + b"".join(events))


def named(field: int, key: int, name: str) -> bytes:
    """An entry of a dictionary."""
    return content(field, number(1, key) + content(2, number(1, key) + content(2, name.encode())))


def xspace(events: int, *, plain: bool) -> bytes:
    """An XSpace of about so many events."""
    steps = max(events // (DEVICES * OPERATIONS + CALLS), 1)
    operations = [f"fusion.{one}" for one in range(OPERATIONS)]
    kinds = operations + [f"PjitFunction(f{call})" for call in range(CALLS)]
    values = [*operations, "jit_step"]
    plane = [content(2, b"/host:CPU"), line(1, "python", python(steps, plain=plain))]
    plane += [
        line(2 + device, f"tf_XLAEigen/{device}", worker(device, steps, plain=plain)) for device in range(DEVICES)
    ]
    plane += [named(4, key, name) for key, name in enumerate(kinds, start=1)]
    plane += [named(5, key, name) for key, name in enumerate(STATS, start=1)]
    plane += [named(5, key, name) for key, name in enumerate(values, start=FIRST_TEXT)]
    return content(1, b"".join(plane))


def main() -> None:
    """Write the file, then read it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=float, default=1e6)
    parser.add_argument("--out", type=Path, required=True, help="folder for the file")
    parser.add_argument("--plain", action="store_true", help="without statistics")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / f"made{'-plain' * given.plain}-{given.events:.0f}.xplane.pb"
    file.write_bytes(xspace(int(given.events), plain=given.plain))
    measure(file, given.rounds)


def measure(file: Path, rounds: int) -> None:
    """Read a file several times, all of the reader, and print the best."""
    from traceflow.program.schema import message
    from traceflow.trace._xla_decoded import plane_lines
    from traceflow.trace._xla_lines import Count
    from traceflow.trace.xspace import read_xspace

    def columns() -> int:
        count = Count()
        for plane in message("XSpaceOfBytes").FromString(file.read_bytes()).planes:
            for _ in plane_lines(plane, {entry.key: entry.value.name for entry in plane.stat_metadata}, count):
                pass
        return count.read

    for name, read in (("columns", columns), ("all", lambda: read_xspace(file).trace.tally.read)):
        seconds, events = [], read()  # compiles
        for _ in range(rounds):
            start = time.process_time()
            read()
            seconds.append(time.process_time() - start)
        print(f"{name}: {events:,} events, {events / min(seconds):,.0f} per CPU second")


if __name__ == "__main__":
    main()
