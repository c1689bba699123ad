"""One call for a continuation, before it takes the form of any wire protocol."""

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, Self, cast

import msgspec

from workers.inference.arrived import CallTokens
from workers.inference.assignment import Endpoint
from workers.inference.pictures import Picture
from workers.inference.protocol import Completion
from workers.inference.routes import RoutesAsked

if TYPE_CHECKING:
    _Ids = array[int]  # pyright: ignore[reportIndexIssue]
else:
    _Ids = array


class GrowingIds(_Ids):
    """The ids of a conversation, and their JSON, to which each call adds the new ones: about six bytes a token.

    They grow at their end alone (`extend`); nothing else may change them.
    """

    def __new__(cls, ids: Iterable[int]) -> Self:
        return cast("Self", super().__new__(cls, "I", ids))

    def __init__(self, ids: Iterable[int]) -> None:  # noqa: ARG002 - `__new__` has taken them
        super().__init__()
        self._json = bytearray(b"[")
        self._encoded = 0  # of them are in it

    def json(self) -> bytes:
        if self._encoded < len(self):
            more = msgspec.json.encode(self[self._encoded :].tolist())
            self._json[-1:] = more if not self._encoded else b"," + more[1:]
            self._encoded = len(self)
        return bytes(self._json) if self._encoded else b"[]"

    def settle(self) -> None:
        """Frees the JSON: no call is made with them any more."""
        self._json, self._encoded = bytearray(b"["), 0


def ids_as_json(ids: Sequence[int]) -> msgspec.Raw:
    """The ids of a prompt as they are sent."""
    return msgspec.Raw(ids.json() if isinstance(ids, GrowingIds) else msgspec.json.encode(list(ids)))


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to sample. `request_id` is new for every call, so that an abort can hit no other."""

    request_id: str
    session_id: str  # the same for all turns of a job: routers keep its prefix cache by it
    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float
    top_p: float = 1.0
    top_k: int = -1  # 0 or less: off
    seed: int | None = None
    stop_token_ids: Sequence[int] = ()
    answer_s: float | None = None  # None: the transport's limit
    arrived: CallTokens | None = None  # gets the tokens as they come, where the backend can stream them
    routes: RoutesAsked | None = None  # come with the answer
    pictures: Sequence[Picture] = ()  # in the prompt, in the order of their ids

    @property
    def draws(self) -> bool:
        """True if the seed decides what is sampled. Its generator cannot be set to a place within an answer."""
        return self.seed is not None and self.temperature > 0 and self.top_k != 1


class BackendClient(Protocol):
    """Sends requests to any number of backends, in one wire protocol or in each backend's own."""

    async def generate(self, backend: Endpoint, request: GenerateRequest) -> Completion:
        """Raises `InferenceError`. Cancelling the task stops the backend's work."""
        ...
