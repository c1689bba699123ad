"""Encodes messages and trajectories: MessagePack, compressed where they are large."""

import asyncio
import zlib
from typing import Any, Final, TypeVar

import msgspec

from prorl_mq.schema.trajectory import Trajectory, check

T = TypeVar("T")

encode = msgspec.msgpack.Encoder().encode
_ZLIB: Final = b"\x01"
_PLAIN: Final = b"\x00"
_COMPRESS_FROM: Final = 512  # bytes; below it compression costs more than it saves
_trajectory = msgspec.msgpack.Decoder(Trajectory)


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
    return compress(encode(trajectory))


def decode_trajectory(data: bytes) -> Trajectory:
    return _trajectory.decode(expand(data))


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
