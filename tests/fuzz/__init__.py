"""Harnesses that give every reader hostile input: `python -m fuzz.run kineto`, from the folder `tests`.

Whatever a file holds, a reader gives what it promises or refuses with one `TraceflowError`. Anything else is a defect:
another exception, a warning, a trace that contradicts itself, a hang, memory out of proportion to the input.
"""
