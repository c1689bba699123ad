"""Reads what kind an image is and how large, from its first bytes: nothing is decoded, and nobody needs a library."""

import re
from typing import Final, NamedTuple

MAX_BYTES: Final = 8 << 20
MAX_PIXELS: Final = 4096 * 4096
MAX_SIDE: Final = 1 << 14
MAX_IMAGES: Final = 64  # of one task
MAX_TASK_BYTES: Final = 32 << 20  # of its images together: its trajectories have them, too
MAX_SEGMENTS: Final = 4096  # of a JPEG in front of its size: a photo has a dozen, with a long colour profile 200
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # JPEG's markers that tell a size
_PADDING: Final = re.compile(rb"\xff+")
_BARE: Final = frozenset({0x01, *range(0xD0, 0xD9)})  # its markers without a length


class ImageRefused(ValueError):
    """Bytes are no image that is taken. The message says why, and what is."""


class ImageShape(NamedTuple):
    """Kind and size of an image, in pixels."""

    kind: str  # image/png, image/jpeg or image/webp
    width: int
    height: int


def shape_of(data: bytes) -> ImageShape:
    """Raises `ImageRefused`."""
    if len(data) > MAX_BYTES:
        raise ImageRefused(f"it has {len(data)} bytes; {MAX_BYTES} are allowed: scale it down, or compress it")
    shape = _shape(data)
    if shape is None:
        raise ImageRefused(f"its {len(data)} bytes begin as no PNG, JPEG or WebP: convert it to one of these")
    if not shape.width or not shape.height:
        raise ImageRefused(f"it is {shape.width} by {shape.height} pixels")
    if shape.width * shape.height > MAX_PIXELS or max(shape.width, shape.height) > MAX_SIDE:
        raise ImageRefused(
            f"it is {shape.width} by {shape.height} pixels; {MAX_PIXELS} are allowed, and {MAX_SIDE} a side: scale it "
            "down"
        )
    return shape


def _shape(data: bytes) -> ImageShape | None:
    if data.startswith(_PNG):
        return ImageShape("image/png", _big(data, 16, 4), _big(data, 20, 4)) if data[12:16] == b"IHDR" else None
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp(data)
    return None


def _jpeg(data: bytes) -> ImageShape | None:
    """Steps from segment to segment, over each one's padding at once. Raises `ImageRefused` where there are many."""
    at = 2
    for _ in range(MAX_SEGMENTS):
        padded = _PADDING.match(data, at)
        if padded is None or padded.end() + 3 > len(data):
            return None
        at = padded.end()  # of the marker's second byte
        marker = data[at]
        if marker in _FRAMES:
            return ImageShape("image/jpeg", _big(data, at + 6, 2), _big(data, at + 4, 2))
        at += 1 if marker in _BARE else 1 + max(2, _big(data, at + 1, 2))
    raise ImageRefused(f"it has more than {MAX_SEGMENTS} segments in front of its size: write it again without them")


def _webp(data: bytes) -> ImageShape | None:
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return None
    if kind == b"VP8X":
        return ImageShape("image/webp", 1 + _little(body, 4, 3), 1 + _little(body, 7, 3))
    if kind == b"VP8L" and body[0] == 0x2F:
        bits = _little(body, 1, 4)
        return ImageShape("image/webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        return ImageShape("image/webp", _little(body, 6, 2) & 0x3FFF, _little(body, 8, 2) & 0x3FFF)
    return None


def _big(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
