"""The folder that `traceflow run` puts on the path of the programs it starts; it holds nothing but the start hook."""
