"""Encodes messages and trajectories: MessagePack, compressed where they are large.

In a trajectory whose segments begin alike each beginning is stored once: a segment names an earlier one and how many of
its ids (prompt and response, one after the other) it begins with, and has only the others. So all segments together
have as many ids as their prefix tree has nodes.
"""

import asyncio
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, Literal, TypeVar

import msgspec

from prorl_mq.schema.images.placed import PlacedImage, PromptImage
from prorl_mq.schema.trajectory import (
    ExpertRoutes,
    ForkedFrom,
    HostReached,
    PromptMessage,
    Segment,
    Span,
    Trajectory,
    Turn,
    check,
    common_rows,
    joined_routes,
)

T = TypeVar("T")

encode = msgspec.msgpack.Encoder().encode


SHARED: Final = 2  # schema version of this form
_WORD: Final = 8  # bytes of an id
_KEPT: Final = (
    "turns", "stop_reason", "truncated_by", "temperature", "top_p", "top_k", "tools", "artefact", "forked_from",
    "egress", "images", "image_id",
)  # fmt: skip


class StoredSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment without what it has in common with segment `base`."""

    base: int | None
    shared: int  # ids of the base, its prompt and response, that it begins with
    shared_text: int  # characters of the base's prompt text
    shared_messages: int  # messages of the base
    prompt_tokens: int
    ids: Sequence[int]  # the others, of prompt and response
    loss_mask: Sequence[int]
    logprobs: Sequence[float | None]
    spans: Sequence[Span]
    opened_by: Literal["start", "compaction", "break", "branch", "other"]
    prompt_text: str
    messages: Sequence[PromptMessage]
    keeps_thinking: bool = False
    routes: ExpertRoutes | None = None  # those behind the rows that are the base's, too
    images: Sequence[PlacedImage] = []  # all of them


class StoredTrajectory(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory of such segments; `_KEPT` are its fields that are as they were."""

    tree: Sequence[StoredSegment]  # in place of `segments`: who does not know the form fails, and reads nothing wrong
    turns: Sequence[Turn]
    stop_reason: str
    truncated_by: str | None
    temperature: float
    top_p: float
    top_k: int
    tools: Sequence[dict[str, object]]
    artefact: bytes = b""
    forked_from: ForkedFrom | None = None
    egress: Sequence[HostReached] = []
    images: Sequence[PromptImage] = []
    image_id: int | None = None
    schema: int = SHARED


class _Shape(msgspec.Struct):
    """The part of a trajectory by which its form is known."""

    tree: msgspec.Raw = msgspec.Raw(b"")


_ZLIB: Final = b"\x01"
_PLAIN: Final = b"\x00"
_COMPRESS_FROM: Final = 512  # bytes; below it compression costs more than it saves
_trajectory = msgspec.msgpack.Decoder(Trajectory)
_shared = msgspec.msgpack.Decoder(StoredTrajectory)
_shape = msgspec.msgpack.Decoder(_Shape)


def decode(data: bytes, kind: type[T]) -> T:
    """Raises `msgspec.ValidationError` or `msgspec.DecodeError`."""
    return msgspec.msgpack.decode(data, type=kind)


def compress(data: bytes) -> bytes:
    """One byte that says how, then the data."""
    if len(data) < _COMPRESS_FROM:
        return _PLAIN + data
    return _ZLIB + zlib.compress(data, 1)


def expand(data: bytes, *, most_bytes: int = 0) -> bytes:
    """The inverse of `compress`. Raises `ValueError` above `most_bytes`, where that is given."""
    if data[:1] != _ZLIB:
        return data[1:]
    if not most_bytes:
        return zlib.decompress(data[1:])
    unfolding = zlib.decompressobj()
    found = unfolding.decompress(data[1:], most_bytes)
    if not unfolding.eof:
        raise ValueError(f"it is cut short, or has more than {most_bytes} bytes")
    return found


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """As it is; where segments begin alike, in the form that stores each beginning once."""
    return compress(encode(stored(trajectory) or trajectory))


def decode_trajectory(data: bytes) -> Trajectory:
    """Either form. Raises `msgspec.ValidationError` or `msgspec.DecodeError`."""
    plain = expand(data)
    if not bytes(_shape.decode(plain).tree):
        return _trajectory.decode(plain)
    return restored(_shared.decode(plain))


async def pack_trajectory(trajectory: Trajectory) -> bytes:
    """Checks and encodes in a thread: a long trajectory takes tens of milliseconds. Raises `TrajectoryError`."""
    return await asyncio.to_thread(_checked, trajectory)


async def unpack_trajectory(data: bytes) -> Trajectory:
    """The inverse of `pack_trajectory`, in a thread too."""
    return await asyncio.to_thread(decode_trajectory, data)


def _checked(trajectory: Trajectory) -> bytes:
    check(trajectory)
    return encode_trajectory(trajectory)


def sendable(text: str) -> str:
    """With escapes for halves of surrogate pairs: `os.fsdecode` and JSON may bring them, UTF-8 has none."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def encode_sendable(message: msgspec.Struct) -> bytes:
    """A message for people, any text of which may need escapes."""
    try:
        return encode(message)
    except UnicodeEncodeError:
        return encode(_with_escapes(msgspec.to_builtins(message)))


def _with_escapes(data: Any) -> Any:
    if isinstance(data, str):
        return sendable(data)
    if isinstance(data, dict):
        return {_with_escapes(key): _with_escapes(value) for key, value in data.items()}
    return [_with_escapes(each) for each in data] if isinstance(data, list | tuple) else data


def decode_any(data: bytes) -> Any:
    return msgspec.msgpack.decode(data)


def stored(trajectory: Trajectory) -> StoredTrajectory | None:
    """The stored form; None where no two segments begin alike."""
    bases = _bases([_packed(each) for each in trajectory.segments])
    if not any(shared for _, shared in bases):
        return None
    tree = [
        _stored(trajectory.segments, number, base if shared else None, shared)
        for number, (base, shared) in enumerate(bases)
    ]
    return StoredTrajectory(tree=tree, **{name: getattr(trajectory, name) for name in _KEPT})


def restored(form: StoredTrajectory) -> Trajectory:
    """The trajectory. Raises `msgspec.ValidationError` for a segment whose base does not come before it."""
    found: list[Segment] = []
    for number, each in enumerate(form.tree):
        if each.base is not None and not 0 <= each.base < number:
            raise msgspec.ValidationError(f"segment {number} begins as segment {each.base}, which is not before it")
        found.append(_restored(each, found[each.base] if each.base is not None else None))
    return Trajectory(segments=found, **{name: getattr(form, name) for name in _KEPT})


def _packed(segment: Segment) -> bytes:
    whole = array("q", segment.prompt_ids)
    whole.extend(segment.response_ids)
    return whole.tobytes()


def _bases(packed: Sequence[bytes]) -> list[tuple[int, int]]:
    """The earlier segment that each has most ids in common with, and how many: a neighbour in their order."""
    order: list[tuple[bytes, int]] = []
    found: list[tuple[int, int]] = []
    for number, whole in enumerate(packed):
        place = bisect_left(order, (whole, number))
        near = order[max(place - 1, 0) : place + 1]
        best = max(((_common(whole, other), -earlier) for other, earlier in near), default=(0, 0))
        found.append((-best[1], best[0]))
        order.insert(place, (whole, number))
    return found


def _common(one: bytes, other: bytes) -> int:
    """The number of ids that two begin with."""
    low, high = 0, min(len(one), len(other)) // _WORD
    while low < high:
        middle = (low + high + 1) // 2
        alike = one[low * _WORD : middle * _WORD] == other[low * _WORD : middle * _WORD]
        low, high = (middle, high) if alike else (low, middle - 1)
    return low


def _stored(segments: Sequence[Segment], number: int, base: int | None, shared: int) -> StoredSegment:
    segment = segments[number]
    before = segments[base] if base is not None else None
    text = _alike(segment.prompt_text, before.prompt_text) if before else 0
    messages = _alike(segment.messages, before.messages) if before else 0
    rows = common_rows(segment.routes, before.routes, shared) if before else 0
    return StoredSegment(
        base=base,
        shared=shared,
        shared_text=text,
        shared_messages=messages,
        prompt_tokens=len(segment.prompt_ids),
        ids=[*segment.prompt_ids, *segment.response_ids][shared:],
        loss_mask=segment.loss_mask,
        logprobs=segment.logprobs,
        spans=segment.spans,
        opened_by=segment.opened_by,
        prompt_text=segment.prompt_text[text:],
        messages=segment.messages[messages:],
        keeps_thinking=segment.keeps_thinking,
        routes=segment.routes and segment.routes.since(rows),
        images=segment.images,
    )


def _restored(each: StoredSegment, base: Segment | None) -> Segment:
    before = [*base.prompt_ids, *base.response_ids][: each.shared] if base else []
    ids = [*before, *each.ids]
    return Segment(
        prompt_ids=ids[: each.prompt_tokens],
        response_ids=ids[each.prompt_tokens :],
        loss_mask=each.loss_mask,
        logprobs=each.logprobs,
        spans=each.spans,
        opened_by=each.opened_by,
        prompt_text=(base.prompt_text[: each.shared_text] if base else "") + each.prompt_text,
        messages=[*(base.messages[: each.shared_messages] if base else ()), *each.messages],
        keeps_thinking=each.keeps_thinking,
        routes=_with_routes(each.routes, base),
        images=each.images,
    )


def _with_routes(routes: ExpertRoutes | None, base: Segment | None) -> ExpertRoutes | None:
    if routes is None or not routes.start or base is None or base.routes is None:
        return routes
    return joined_routes(base.routes.until(routes.start), routes)


def _alike(one: Sequence[object], other: Sequence[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
