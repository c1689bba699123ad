"""How a contender in an environment of its own is asked: a number of samples on a line, their seconds on a line back.

It runs inside the environments of others, so it uses the standard library alone.
"""

import json
import sys
import time
from collections.abc import Callable

ANSWER = "ANSWER "


def timed(once: Callable[[], object], count: int) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        once()
        found.append(time.perf_counter() - began)
    return found


def serve(measure: Callable[[int], list[float]]) -> None:
    """Says that it is ready, then answers until the end of its input."""
    print(f"{ANSWER}[]", flush=True)
    for line in sys.stdin:
        print(ANSWER + json.dumps(measure(int(line))), flush=True)
