"""Checks of streams of tokens, whatever their protocol.

A stream must say by itself that it is whole: its last event names why the answer ended, and how many tokens it has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from weakref import WeakSet

from prorl_mq.process.http_connection import HttpAnswer
from workers.inference.arrived import CallTokens, TokensLost
from workers.inference.protocol import InferenceError
from workers.inference.request import GenerateRequest
from workers.inference.transport import Heard, HttpTransport

STREAM_INTERVAL: Final = 8  # tokens of an event, where a server can be asked: one each costs eight times the CPU
COUNTS: Final = {"include_usage": True, "continuous_usage_stats": True}  # in each event, and at the end
_T = TypeVar("_T")


class Lossy:
    """Backends whose streams have left tokens out: they are asked for whole answers from then on."""

    def __init__(self) -> None:
        self._addresses: set[str] = set()
        self._streams = WeakSet[CallTokens]()  # under way

    def streamed(self, address: str, tokens: CallTokens | None) -> CallTokens | None:
        """The place for a stream of this backend; None where it is not to stream."""
        if tokens is None or address not in self._addresses:
            if tokens is not None:
                self._streams.add(tokens)
            return tokens
        tokens.unable = "leaves tokens out of its streams, or does not count them"
        return None

    async def post(
        self,
        transport: HttpTransport,
        address: str,
        route: str,
        body: bytes,
        request: GenerateRequest,
        events: Heard | None,
    ) -> HttpAnswer:
        """Sends a call whose answer may be a stream, of which `events` gets the data of each event."""
        headers = {"x-session-id": request.session_id}
        with self.counting(address):
            return await transport.post(address, route, body, headers=headers, answer_s=request.answer_s, events=events)

    @contextmanager
    def counting(self, address: str) -> Iterator[None]:
        """Notes a backend whose stream turns out to lack tokens. Its other streams are used no more, either."""
        try:
            yield
        except TokensLost:
            self._addresses.add(address)
            for each in self._streams:
                each.whole = each.whole and each.backend != address
            raise


def refuse_error(backend: str, error: Any) -> None:
    """Raises `InferenceError` for an error that came within a stream."""
    if error is not None:
        raise InferenceError(f"backend {backend}: its stream ended with an error", quoted=str(error)[:300])


def ended(backend: str, last: _T | None) -> _T:
    """The event that ended an answer. Raises `InferenceError` where the stream was over before."""
    if last is None:
        raise InferenceError(f"backend {backend}: its stream was over before the answer was")
    return last


def check_count(backend: str, tokens: CallTokens, told: int | None) -> None:
    """Raises `TokensLost` unless as many tokens came as the backend says that it has sampled."""
    if told is None:
        raise TokensLost(f"backend {backend}: its stream does not say how many tokens it has")
    tokens.counted(backend, told)


def say_whole(tokens: CallTokens | None) -> None:
    """Notes that a backend has answered as a whole, though it was asked for a stream."""
    if tokens is not None:
        tokens.unable = "does not stream tokens"
