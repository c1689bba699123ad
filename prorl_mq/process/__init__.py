"""Parts that every process needs: tracing, logs, signals, ports, child processes."""
