"""What records: one module per source, and the workloads that come with traceflow."""
