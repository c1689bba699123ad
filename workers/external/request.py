"""A request of any of the APIs, once it is read; and the memory by which what was read before is not read again."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from workers.agent.tools import Tool
from workers.external.history import BadRequest, Said
from workers.external.parameters import Rule, judged

Given = Mapping[str, msgspec.Raw]
POLICY: Final = "policy"
SMALL: Final = "policy-small"  # the model that is not trained
T = TypeVar("T")
_MEMORY_BYTES: Final = 64 << 20
_LISTS: Final = 4  # conversations whose lists are known as a whole
_LIST_BYTES: Final = 4 << 20  # of one of them
_BLANKS: Final = b" \t\r\n"
_bodies = msgspec.json.Decoder(dict[str, msgspec.Raw])
_lists = msgspec.json.Decoder(list[msgspec.Raw])


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A completion that is asked for, and how it is to be told."""

    history: Sequence[Said]
    tools: Sequence[Tool] = ()
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    model: str = ""
    stream: bool = False
    usage: bool = False  # at the end of a stream
    logprobs: bool = False
    thinking: bool = False  # thoughts are shown
    custom: Sequence[str] = ()  # tools whose input is text
    namespaces: Mapping[str, str] = {}  # of the tools that have one


class RequestMemory:
    """Messages and tools by their bytes: a client sends all of them with every request."""

    def __init__(self) -> None:
        self._said: dict[bytes, Sequence[Said]] = {}
        self._read: dict[tuple[Callable[[Any], Any], bytes], Any] = {}
        self._lists: list[tuple[bytes, Sequence[Said]]] = []  # without their last bracket, the newest first
        self._bytes = 0

    def messages(self, raw: msgspec.Raw | None, read: Callable[[Any], Sequence[Said]], name: str) -> list[Said]:
        """The messages of a list, each read by itself; where it continues a list before, those behind that alone.

        Raises `BadRequest`.
        """
        body = b"" if raw is None else bytes(raw).rstrip(_BLANKS)
        begun = next((each for each in self._lists if _continues(body, each[0])), None)
        found: list[Said] = [] if begun is None else [*begun[1]]
        for piece in _pieces(body if begun is None else b"[" + _rest(body, begun[0])[1:], name):
            key = bytes(piece)
            known = self._said.get(key)
            if known is None:
                known = self._said[key] = read(_decoded(key))
                self._grown(len(key))
            found += known
        if len(body) <= _LIST_BYTES:
            kept = [each for each in self._lists if each is not begun][: _LISTS - 1]
            self._lists = [(body[:-1].rstrip(_BLANKS), tuple(found)), *kept]
        return found

    def once(self, raw: msgspec.Raw | None, read: Callable[[Any], T]) -> T:
        """The value as `read` makes it: the same object for the same bytes. It is given None where there is none."""
        key = b"null" if raw is None else bytes(raw)
        if (read, key) in self._read:
            known: T = self._read[read, key]
            return known
        found = self._read[read, key] = read(_decoded(key))
        self._grown(len(key))  # which may forget it at once
        return found

    def _grown(self, more: int) -> None:
        self._bytes += more
        if self._bytes > _MEMORY_BYTES:
            self._said, self._read, self._lists, self._bytes = {}, {}, [], 0


def _continues(body: bytes, before: bytes) -> bool:
    """True if the list has more elements than one that began with these bytes, and the same ones before them."""
    return body.startswith(before) and _rest(body, before)[:1] == b","


def _rest(body: bytes, before: bytes) -> bytes:
    return body[len(before) :].lstrip(_BLANKS)


def _pieces(body: bytes, name: str) -> list[msgspec.Raw]:
    """The elements of a list that has some. Raises `BadRequest`."""
    try:
        pieces = _lists.decode(body)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{name} must be a list of at least one message") from error
    if not pieces:
        raise BadRequest(f"{name} must be a list of at least one message")
    return pieces


def parameters(body: bytes, rules: Mapping[str, Rule]) -> Given:
    """The parameters of a body, none of which is refused. Raises `BadRequest`."""
    try:
        given = _bodies.decode(body)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"the body is no JSON object: {error}") from error
    judged(given, rules)
    return given


def value(given: Given, name: str) -> Any:
    """A parameter; None if it was not sent."""
    raw = given.get(name)
    return None if raw is None else _decoded(bytes(raw))


def length(given: Given, *names: str) -> int | None:
    """The wanted number of tokens. Raises `BadRequest`."""
    for name in names:
        wanted = value(given, name)
        if wanted is not None:
            if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
                raise BadRequest(f"{name} must be a whole number from 1 on")
            return wanted
    return None


def stops(given: Given, name: str) -> Sequence[str]:
    """Texts that end a completion. Raises `BadRequest`."""
    wanted = value(given, name)
    found = [wanted] if isinstance(wanted, str) else wanted or []
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found) or len(found) > 16:
        raise BadRequest(f"{name} must be a text, or a list of up to 16 texts")
    return tuple(found)


def model_of(given: Given) -> str:
    """The name of the model that is asked; any that nobody has declared is the policy's. Raises `BadRequest`."""
    name = value(given, "model")
    if not isinstance(name, str | None):
        raise BadRequest("model must be a text")
    return name or ""


def apart(others: Iterable[str]) -> None:
    """Raises `ValueError` for names of other models by which the policy is asked."""
    for name in others:
        if name in {"", POLICY, SMALL}:
            raise ValueError(f"{name!r} is the policy's: a model of another pool needs a name of its own")


def flag(given: Given, name: str) -> bool:
    """Raises `BadRequest`: the text "false" is no false."""
    wanted = value(given, name)
    if not isinstance(wanted, bool | None):
        raise BadRequest(f"{name} must be true or false")
    return bool(wanted)


def _decoded(raw: bytes) -> Any:
    """Raises `BadRequest`: a piece may be no JSON where the whole was only looked over."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"the body is no JSON object: {error}") from error
