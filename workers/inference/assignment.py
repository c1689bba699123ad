"""Which backend an attempt of a job talks to."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from workers.inference.logprobs import LogprobMode
from workers.inference.protocol import Completion, InferenceError, NoBackend


class WireProtocol(StrEnum):
    """The ways in which backends take token ids; stored with a backend under these values."""

    VLLM_GENERATE = "vllm-generate"  # POST /inference/v1/generate
    SGLANG_GENERATE = "sglang"  # POST /generate {input_ids}
    COMPLETIONS = "completions"  # POST /v1/completions with ids
    PRORL_GENERATE = "prorl-generate"  # POST /generate {prompt_ids}


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Facts needed to call one backend."""

    address: str  # http://HOST:PORT[/PREFIX], as `transport.normalise` gives it
    protocol: WireProtocol
    model: str | None = None  # None: the request names no model
    cache_salt: str | None = None  # separates prefix caches of different weights
    adapter: str | None = None  # a LoRA adapter that the request names in the model's place
    adapter_version: str | None = None  # that its name says; None: it is not known
    context_tokens: int | None = None  # of prompt and answer together, where the backend tells
    logprobs: LogprobMode = LogprobMode.PROCESSED  # as its probe found


@dataclass(eq=False)
class TurnUnderWay:
    """One call of an attempt, as its assigner counts it. An attempt may have several at once."""

    context: int  # tokens of the prompt, and of the answer once that is there
    answer: int  # tokens that it is expected to have
    prompt: Sequence[int] = ()
    opening: int = 0  # tokens of the prompt that the attempt began with; 0 where tokens do not say all of it


class Assigner(Protocol):
    """Hands out the backends of a pool. An assignment is sticky: asked once, and again only after a failure."""

    async def assign(self, job_id: str, token: str, *, exclude: AbstractSet[str]) -> Endpoint:
        """A backend for this attempt, in place of the one it had. Raises `NoBackend`.

        `exclude` holds addresses that failed under the current call; they are not handed out.
        """
        ...

    async def room(self, backend: Endpoint, turn: TurnUnderWay, patience_s: float) -> Endpoint:
        """Called before every call, and waits for room in the pool's caches: the backend that the turn may begin on.

        `patience_s`: the longest wait, from when this turn asked first.
        """
        ...

    def ended(self, turn: TurnUnderWay) -> None:
        """A call is over, whether it was answered, has failed, was cancelled or never began."""
        ...

    async def ready(self, backend: Endpoint) -> Endpoint | None:
        """Called before every call, and waits while none may start: the backend as it is to be called now.

        None: it could not be called for too long, take another.
        """
        ...

    async def version(self, address: str) -> str | None:
        """The version of a backend's weights, where it is certain at this moment."""
        ...

    async def report_failure(self, address: str, error: InferenceError) -> None:
        """A call to this backend failed in a way that another backend may not."""
        ...

    async def report_success(self, address: str, completion: Completion) -> None:
        """A call to this backend was answered."""
        ...


class FixedAssigner:
    """A fixed list of backends, each new assignment going to the next one in turn."""

    def __init__(self, *backends: Endpoint) -> None:
        self.failures: dict[str, int] = {}  # by address
        self.last_error: dict[str, InferenceError] = {}
        self._backends = backends
        self._next = 0

    async def assign(self, job_id: str, token: str, *, exclude: AbstractSet[str]) -> Endpoint:
        for step in range(len(self._backends)):
            backend = self._backends[(self._next + step) % len(self._backends)]
            if backend.address not in exclude:
                self._next = (self._next + step + 1) % len(self._backends)
                return backend
        known = ", ".join(backend.address for backend in self._backends) or "none"
        raise NoBackend(f"job {job_id}, token {token}: no backend left; known: {known}; failed: {len(exclude)}")

    async def room(self, backend: Endpoint, turn: TurnUnderWay, patience_s: float) -> Endpoint:
        del turn, patience_s
        return backend

    def ended(self, turn: TurnUnderWay) -> None:
        """Nothing to free."""

    async def ready(self, backend: Endpoint) -> Endpoint:
        return backend

    async def version(self, address: str) -> str | None:  # noqa: ARG002 - the name is the protocol's
        return None

    async def report_failure(self, address: str, error: InferenceError) -> None:
        self.failures[address] = self.failures.get(address, 0) + 1
        self.last_error[address] = error

    async def report_success(self, address: str, completion: Completion) -> None:
        """Nothing to remember."""
