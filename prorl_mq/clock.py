"""The process's view of time. What counts in Redis is Redis's own clock; this one serves waits and labels."""

import time


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic() -> float:
    """Seconds on a clock that only goes forward."""
    return time.monotonic()
