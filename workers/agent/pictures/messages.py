"""Messages with images: each `<image>` in a text stands for the next of its message's images."""

import contextvars
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from prorl_mq.schema.faults import Cause
from prorl_mq.schema.images.placed import PromptImage
from prorl_mq.schema.images.rows import MARK
from workers.agent.hermes import Message

PLACE: Final = f"\ue000{secrets.token_hex(8)}\ue001"  # of an image in a text on its way to the chat template: no text
# that was written before this process began can hold it


class MarksMismatched(Exception):
    """A task's messages have other places for images than it has images."""

    retryable = False
    cause = Cause.ROW


class Pictured(Message, frozen=True, kw_only=True):
    """A message with images. Rows cannot make one: they name their images, and the ingress checks them."""

    images: Sequence[PromptImage]


_images: contextvars.ContextVar[Sequence[PromptImage]] = contextvars.ContextVar("images", default=())


def enter(images: Sequence[PromptImage]) -> None:
    """Gives the images of the job that this task runs from now on."""
    _images.set(images)


def of_job() -> Sequence[PromptImage]:
    """The images of the job that this task runs."""
    return _images.get()


def images_of(messages: Sequence[Message]) -> list[PromptImage]:
    return [image for each in messages if isinstance(each, Pictured) for image in each.images]


def attached(messages: Sequence[Message], images: Sequence[PromptImage] | None = None) -> list[Message]:
    """Messages with the job's images, each at its mark; without any, the same messages. Raises `MarksMismatched`."""
    rest = list(of_job() if images is None else images)
    if not rest:
        return list(messages)
    count, given = len(rest), sum(each.content.count(MARK) for each in messages)
    if given != count:
        raise MarksMismatched(f"the task has {count} images, and what is asked has {given} times {MARK}: one for each")
    made: list[Message] = []
    for each in messages:
        marks = each.content.count(MARK)
        made.append(Pictured(role=each.role, content=each.content, images=rest[:marks]) if marks else each)
        del rest[:marks]
    return made


def placed(messages: Sequence[Message]) -> list[Message]:
    """Messages as the chat template gets them."""
    return [
        Message(role=each.role, content=each.content.replace(MARK, PLACE)) if isinstance(each, Pictured) else each
        for each in messages
    ]


def in_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message of a conversation with its images as parts, where it has some."""
    content = message.get("content")
    if not isinstance(content, str) or PLACE not in content:
        return message
    first, *rest = content.split(PLACE)
    parts: list[dict[str, str]] = [{"type": "text", "text": first}] if first else []
    for text in rest:
        parts.append({"type": "image"})
        if text:
            parts.append({"type": "text", "text": text})
    return {**message, "content": parts}


def logged(messages: Sequence[Message], images: Sequence[PromptImage]) -> list[dict[str, str]]:
    """Messages for the log of turns, with their images by number. Raises `ValueError` for one that is not there."""
    found = []
    for each in messages:
        told = {"role": each.role, "content": each.content}
        if isinstance(each, Pictured):
            if any(image not in images for image in each.images):
                raise ValueError("a shortened history shows an image that the rollout did not begin with: leave it out")
            told["images"] = " ".join(str(list(images).index(image)) for image in each.images)
        found.append(told)
    return found


def unlogged(told: Sequence[Mapping[str, str]], images: Sequence[PromptImage]) -> list[Message]:
    """The inverse of `logged`."""
    return [
        Pictured(role=each["role"], content=each["content"], images=[images[int(n)] for n in each["images"].split()])
        if "images" in each
        else Message(role=each["role"], content=each["content"])
        for each in told
    ]
