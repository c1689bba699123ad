"""Reads what kind an image is and how large, from its first bytes: nothing is decoded, and nobody needs a library."""

from typing import Final, NamedTuple

MAX_BYTES: Final = 8 << 20
MAX_PIXELS: Final = 4096 * 4096
MAX_SIDE: Final = 1 << 14
MAX_IMAGES: Final = 64  # of one task
MAX_TASK_BYTES: Final = 32 << 20  # of its images together: its trajectories have them, too
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # JPEG's markers that tell a size
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
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF or marker in _BARE:  # padding, or a marker of two bytes
            at += 1 if marker == 0xFF else 2
        elif marker in _FRAMES:
            return ImageShape("image/jpeg", _big(data, at + 7, 2), _big(data, at + 5, 2))
        else:
            at += 2 + max(2, _big(data, at + 2, 2))
    return None


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
