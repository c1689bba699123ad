"""What crosses a process border or lies in Redis: plain data, without Redis."""
