"""An independent simulator of multi-rank programs: it knows when everything happens, and writes what a profiler sees.

It works forward in time, from instructions and durations, and shares no code and no data structure with the
analyzers that are held against it.
"""
