"""What the jobs of other queues write down; it runs in their environments, without ours."""

import os
import time

URL = os.environ.get("CHAOS_REDIS_URL", "redis://127.0.0.1:6379/0")
WORK_S = 0.02
PACE = float(os.environ.get("CHAOS_PACE", "50"))


def mark(what: str, job: str) -> None:
    """One line by one write: the kernel keeps it when this process is killed."""
    with open(os.environ["CHAOS_MARKS"], "ab", buffering=0) as file:  # noqa: PTH123 - the least that a job can do
        file.write(f"{what} {job} {time.monotonic():.4f}\n".encode())


def names() -> list[str]:
    """Names of the jobs to send."""
    return [f"j{number}" for number in range(int(os.environ["CHAOS_JOBS"]))]
