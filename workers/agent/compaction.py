"""Compaction by a task family: it shortens a history that grows too long, by giving messages to continue from.

Nothing that was sampled is rewritten. The segment ends where it is, and the next one begins with a prompt of the new
messages, all of it mask 0; the trajectory counts it as a fork.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from workers.agent.hermes import Message


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout between two turns. `messages`: all since the last compaction, the model's turns as text."""

    messages: Sequence[Message]
    context_tokens: int  # of the prompt that would be sent now
    max_context_tokens: int
    turns: int


class Compact(Protocol):
    """Looks at a history before each turn but the first."""

    async def __call__(self, history: History) -> Sequence[Message] | None:
        """The messages to continue from, or None to continue as it is. They are rendered again, tools included."""
        ...
