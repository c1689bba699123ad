"""Interface of inference for the agent loop: token ids in, token ids out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from prorl_mq.schema.faults import Cause
from prorl_mq.schema.trajectory import ExpertRoutes
from prorl_mq.schema.turns import CompletionSpan

if TYPE_CHECKING:
    from workers.inference.arrived import Arrived
    from workers.inference.pictures import Picture
    from workers.inference.routes import RoutesAsked


class InferenceError(Exception):
    """A backend failed to answer as its protocol says. The message names the backend and quotes what it sent.

    A tenant's backend is quoted in the log alone: it may be no backend at all.
    """

    retryable = True
    cause = Cause.BACKEND

    def __init__(self, message: str, *, quoted: str = "") -> None:
        super().__init__(f"{message}: {quoted}" if quoted else message)
        self.unquoted = message


class BackendRefused(InferenceError):
    """The backend says that the request itself is wrong (4xx): sending it again cannot help."""

    retryable = False


class ContextFull(BackendRefused):
    """The prompt alone fills the backend's context, which is smaller than the job's. The rollout ends there."""


class NoBackend(InferenceError):
    """The pool has no healthy backend with room for the job."""


class MalformedAnswer(InferenceError):
    """Ids and log-probabilities do not fit together."""


class Silent(InferenceError):
    """A backend took a call and says nothing to it, and nothing to another call beside it, or answers only that one."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled continuation, bit for bit as the backend sent it. `ids` and `logprobs` have one length."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str  # stop, length, abort
    stop_token: int | None = None
    backend: str = ""
    version: tuple[str, str] | None = None  # at its first and last token; None where the backend does not tell
    spans: Sequence[CompletionSpan] = ()  # who sampled which of the ids, one after another; none: one did it all
    prompt_tokens: int | None = None  # as the backend counted them; checked against what was sent
    cached_tokens: int | None = None
    seconds: float = 0.0
    routes: ExpertRoutes | None = None  # of the tokens that were asked for, up to the last but one


class Policy(Protocol):
    """The policy as one attempt of a job sees it: sticky to a backend, moved when that one dies."""

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = -1,
        seed: int | None = None,
        stop_token_ids: Sequence[int] = (),
        arrived: "Arrived | None" = None,
        routes: "RoutesAsked | None" = None,
        pictures: "Sequence[Picture]" = (),
    ) -> Completion:
        """Samples from the pool's backend. Raises `InferenceError`; cancelling the task aborts the request.

        With `arrived` it continues from what that has, and puts there what it samples, as it comes. `pictures`: images
        that some of the prompt's ids stand for.
        """
        ...
