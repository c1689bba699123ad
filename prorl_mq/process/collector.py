"""Python's garbage collector in a process that makes many short-lived objects and few cycles."""

import gc


def calm() -> None:
    """Collects seldom, and never looks again at what start-up made. Measured: a tenth of a stage's CPU a job."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
