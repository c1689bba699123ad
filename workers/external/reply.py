"""The answer to a call: a completion as the APIs tell it, or the end of the rollout."""

from collections.abc import Sequence

import msgspec

from workers.agent.result import LoopEnd
from workers.external.forest import GivenIds
from workers.external.history import Said


class LimitReached(Exception):
    """The rollout is over; `stop` names the limit, or why it was ended."""

    def __init__(self, stop: LoopEnd) -> None:
        super().__init__(
            f"the limit of this rollout is reached: {stop.truncated_by}"
            if stop.truncated_by
            else f"this rollout is over: {stop.reason}"
        )
        self.stop = stop


class RecordedReply(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, as the APIs tell it."""

    number: int
    given: GivenIds
    said: Said
    plain: str  # the completion as text, markers left out
    reasoning: str
    finish_reason: str  # stop, length
    stopped_by: str | None  # the request's stop text that ended it
    prompt_tokens: int
    tokens: Sequence[tuple[str, float]]  # each as text, with its log-probability

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens)

    def id(self, kind: str, place: int | None = None) -> str:
        """An id by which this completion is known again."""
        return self.given.make(kind, self.number, place)
