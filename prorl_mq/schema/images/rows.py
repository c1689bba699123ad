"""Images in a task's payload: found in the forms that data sets and chat APIs have, and written in one of ours.

Ours is verl's: `images` is a list, and each `<image>` in the messages, or in the question, stands for the next of them.
A message in parts (`{"type": "image_url", "image_url": {"url": "data:..."}}`) becomes that. Nothing is ever fetched.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from prorl_mq.schema.images.header import MAX_BYTES, MAX_IMAGES, ImageRefused

FIELD: Final = "images"
MARK: Final = "<image>"
_MESSAGES: Final = ("prompt", "question", "problem", "messages")
_DATA: Final = re.compile(r"data:(image/[a-z+.-]+)?(?:;[a-z0-9-]+=[^;,]*)*;base64,", re.IGNORECASE)
_PARTS: Final = frozenset({"image", "image_url", "input_image"})
_TEXTS: Final = frozenset({"text", "input_text"})


class SentImage(NamedTuple):
    """An image as it was sent."""

    kind: str  # that it is said to be; empty: nothing is said
    data: bytes


def has_images(payload: Mapping[str, Any]) -> bool:
    """True if a payload names images, in either form. Of a text that costs a look at four fields."""
    if payload.get(FIELD):
        return True
    for name in _MESSAGES:
        if isinstance(payload.get(name), list):
            return any(True for _ in in_parts(payload))
    return False


def taken_out(payload: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The payload with texts alone, and its images as they were sent, in the order of their marks.

    Raises `ImageRefused`.
    """
    given = payload.get(FIELD) or []
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise ImageRefused(f"{FIELD} is no list")
    listed, plain = list(given), dict(payload)
    for name in dict.fromkeys(in_parts(payload)):
        if listed:
            raise ImageRefused(f"it has images in {FIELD} and in the parts of {name}: use one of them")
        plain[name] = [_flat(message, listed) for message in payload[name]]
    if len(listed) > MAX_IMAGES:
        raise ImageRefused(f"it has {len(listed)} images; {MAX_IMAGES} are allowed")
    marks = sum(text.count(MARK) for text in _texts(plain))
    if marks != len(listed):
        raise ImageRefused(f"it has {len(listed)} images, and its text has {marks} times {MARK}: one for each")
    return plain, listed


def sent(image: Any) -> Any:
    """An image as it was sent, without the mapping that rows may have around it: verl's `{"bytes": …}`."""
    return image.get("bytes") or image.get("image") or image.get("url") if isinstance(image, Mapping) else image


def bytes_of(image: Any) -> SentImage:
    """The bytes of an image as rows have it: a data: URL, bytes, or a mapping with one. Raises `ImageRefused`."""
    image = sent(image)
    if isinstance(image, bytes | bytearray):
        return SentImage("", bytes(image))
    if not isinstance(image, str):
        raise ImageRefused("it is neither a data: URL nor bytes: send its bytes, base64 as data:image/png;base64,…")
    found = _DATA.match(image[:256])
    if found is None:
        begins = image[:40]
        raise ImageRefused(f"it is no data: URL ({begins!r}): nothing is fetched; send its bytes, base64 in one")
    if len(image) > MAX_BYTES * 4 // 3 + 1024:
        raise ImageRefused(f"it has more than {MAX_BYTES} bytes: scale it down, or compress it")
    try:
        return SentImage((found[1] or "").lower(), base64.b64decode(image[found.end() :], validate=True))
    except ValueError as error:  # also a character outside ASCII
        raise ImageRefused(f"its data: URL is no base64: {error}") from None


def in_parts(payload: Mapping[str, Any]) -> Iterator[str]:
    """The fields with messages of which one has an image in a part."""
    for name in _MESSAGES:
        value = payload.get(name)
        if isinstance(value, list) and any(_kind(part) in _PARTS for part in _parts(value)):
            yield name


def _parts(messages: Sequence[Any]) -> Iterator[Any]:
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list):
            yield from content


def _kind(part: Any) -> str:
    """The type that a part says it has; empty for what is no part, or has none that is a text."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) else ""


def _flat(message: Any, listed: list[Any]) -> Any:
    """A message with marks in its text; its images go behind the others."""
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
        return message
    told = []
    for part in message["content"]:
        kind = _kind(part)
        if kind in _TEXTS and isinstance(part.get("text"), str):
            told.append(part["text"])
        elif kind in _PARTS:
            value = part.get("image_url", part.get("image"))
            listed.append(value.get("url") if isinstance(value, Mapping) and "url" in value else value)
            told.append(MARK)
        else:
            said = part.get("type") if isinstance(part, Mapping) else part
            raise ImageRefused(f"a message has a part of type {str(said)[:40]!r}: text and images are taken")
    return {**message, "content": "".join(told)}


def _texts(payload: Mapping[str, Any]) -> Iterator[str]:
    for name in _MESSAGES:
        value = payload.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            contents = (each.get("content") for each in value if isinstance(each, Mapping))
            yield from (each for each in contents if isinstance(each, str))
        if value:
            return
