"""What happened and when: the trace as columns, one reader per format, clocks and ranks."""
