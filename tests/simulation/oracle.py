"""The step oracle: after every script's reply, what it granted must have been granted to the current lease alone."""

from collections import Counter
from typing import Any

from prorl_mq.store.keys import Keys


class Oracle:
    def __init__(self, keys: Keys, counts: "Counter[str]") -> None:
        self.violations: list[str] = []

    def __call__(self, now_ms: int, command: tuple[Any, ...], reply: Any) -> None: ...
