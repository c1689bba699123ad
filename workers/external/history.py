"""A conversation as a client of a chat API sends it: all of it, every time. Compared, and turned into messages."""

import contextlib
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec

from prorl_mq.schema.images.header import ImageRefused, shape_of
from prorl_mq.schema.images.placed import PromptImage
from prorl_mq.schema.images.rows import MARK, bytes_of
from workers.agent.hermes import Message
from workers.agent.parser import Parsed
from workers.agent.pictures.messages import Pictured
from workers.agent.tools import Refused, Tool, ToolAnswer, ToolContext, refusal


class BadRequest(Exception):
    """A request that no answer fits. The message says what to send instead."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One message, without what clients add to it on the way: equal ones are the same message."""

    role: str
    text: str
    calls: Sequence[tuple[str, str]] = ()  # name, and arguments as JSON of one form
    ids: Sequence[str] = ()  # of its calls and items, as whoever wrote it gave them out
    answers: str = ""  # the id of the call whose result it is
    token_ids: Sequence[int] = ()  # a prompt that was sent as ids
    images: Sequence[PromptImage] = ()  # each at its mark in the text

    @property
    def key(self) -> Hashable:
        """The same for the same message. Of the assistant's it is what nobody here has sampled."""
        return self.role, self.text, self.answers, self.calls, self.token_ids, self.images

    def message(self) -> Message:
        """As text, for a history that has to be rendered again."""
        told = [self.text] if self.text else []
        told += [
            f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {given}}}\n</tool_call>'
            for name, given in self.calls
        ]
        content = "\n".join(told)
        if self.images and content.count(MARK) == len(self.images):  # unless a task family has put other words there
            return Pictured(role=self.role, content=content, images=self.images)
        return Message(role=self.role, content=content)


async def _not_here(_: ToolContext, __: Any) -> ToolAnswer:
    return refusal(Refused.UNKNOWN_TOOL, "this tool is the client's to run")


def foreign(function: Mapping[str, Any]) -> Tool:
    """A tool that the client runs, from a function of the chat API: name, description, parameters."""
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise BadRequest("a tool needs a name")
    parameters = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    description = str(function.get("description") or "")
    return Tool(name=name, description=description, arguments=parameters, run=_not_here)


def answered(parsed: Parsed) -> Said:
    """The client's view of a completion, which it will send back as part of its history."""
    broken = [call.source for call in parsed.calls if call.error is not None]
    text = "\n".join(part for part in (parsed.text, *broken) if part)
    calls = [(call.name, canonical(call.arguments)) for call in parsed.calls if call.error is None]
    return Said(role="assistant", text=text.strip(), calls=tuple(calls))


def canonical(arguments: object) -> str:
    """JSON in one form, whatever form the client sends it back in."""
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments)
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False)


def text_of(content: object) -> str:
    """The text of a message's content, which may come in parts. Raises `BadRequest` for pictures and sound."""
    text, images = content_of(content)
    if images:
        raise BadRequest("an image is taken in a message of the user's, or in a tool's result: send it there")
    return text


def content_of(content: object) -> tuple[str, tuple[PromptImage, ...]]:
    """The text of a message's content, with a mark for each of its images, and these. Raises `BadRequest`."""
    if content is None:
        return "", ()
    if isinstance(content, str):
        return content, ()
    if not isinstance(content, list):
        raise BadRequest("content is a string, or a list of parts")
    texts: list[str] = []
    images: list[PromptImage] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in {"text", "input_text", "output_text"}:
            texts.append(str(part.get("text") or ""))
        elif kind in {"image_url", "input_image", "image"}:
            images.append(_image(part))
            texts.append(MARK)
        else:
            raise BadRequest(f"content of type {kind!r} is not taken: this policy reads text and images")
    text = "".join(texts)
    if images and text.count(MARK) != len(images):
        raise BadRequest(f"a message with images has the text {MARK} too, which stands for one: write it otherwise")
    return text, tuple(images)


def _image(part: Mapping[str, Any]) -> PromptImage:
    """Raises `BadRequest`: nothing is fetched."""
    source = part.get("source")
    if isinstance(source, Mapping):  # Anthropic's
        if source.get("type") != "base64":
            raise BadRequest(f"an image's source {source.get('type')!r} is not taken: nothing is fetched; send base64")
        given: Any = f"data:{source.get('media_type')};base64,{source.get('data')}"
    else:
        given = part.get("image_url")
        given = given.get("url") if isinstance(given, Mapping) else given
    try:
        kind, data = bytes_of(given)
        shape = shape_of(data)
    except ImageRefused as error:
        raise BadRequest(f"an image is not taken: {error}") from error
    if kind not in {"", shape.kind, "image/jpg"}:
        raise BadRequest(f"an image is not taken: it says that it is {kind}, and begins as {shape.kind}")
    return PromptImage(kind=shape.kind, width=shape.width, height=shape.height, data=data)
