"""Prompts of calls: the ids of what is recorded, and the ids of the messages behind it."""

import asyncio
import sys
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeVar

import msgspec

from prorl_mq.schema.images.header import MAX_IMAGES, MAX_TASK_BYTES
from prorl_mq.schema.images.pixels import ImageUnreadable
from prorl_mq.schema.images.placed import PromptImage
from workers.agent.hermes import Message
from workers.agent.pictures.vision import NoVision
from workers.agent.renderer import Renderer
from workers.agent.template import NoTools, TemplateError
from workers.agent.tools import Tool
from workers.external.forest import GivenIds, Node, Placement, pictures_of
from workers.external.history import BadRequest, Said
from workers.inference.pictures import Picture, collapsed

_SHORT: Final = 4096  # characters that are rendered in about a millisecond: others are, in a thread
_LISTS: Final = 32  # conversations whose ids are kept as one list; of others it is put together again
_KEPT: Final = 64  # lists of tools, and openings of conversations, that are not read again
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """All that is sent. `added` are its ids behind the base, made of `messages`."""

    ids: list[int]
    base: Node | None
    added: "array[int]"
    messages: Sequence[Message]
    keeps_thinking: bool = False
    pictures: Sequence[Picture] = ()  # among all ids
    brought: Sequence[Picture] = ()  # among those that are added


class PromptBuilder:
    """Makes them with one model's renderer."""

    def __init__(self, renderer: Renderer, given: GivenIds) -> None:
        self._renderer, self._given = renderer, given
        self._lists: OrderedDict[int, list[int]] = OrderedDict()
        self._signatures: OrderedDict[int, tuple[Sequence[Tool], bytes]] = OrderedDict()
        self._joined: OrderedDict[Hashable, Said] = OrderedDict()
        self._images: set[PromptImage] = set()

    def signature(self, tools: Sequence[Tool]) -> bytes:
        """The tools as the template gets them. The same object is asked for again and again."""
        known = self._signatures.get(id(tools))
        if known is None or known[0] is not tools:
            schemas = [tool.schema() for tool in tools]
            known = (tools, msgspec.json.encode(schemas, order="sorted"))
        _keep(self._signatures, id(tools), known, _KEPT)
        return known[1]

    def canonical(self, history: Sequence[Said]) -> Sequence[Said]:
        """A history whose leading system messages are one."""
        count = next((at for at, said in enumerate(history) if said.role != "system"), len(history))
        if count < 2:
            return history
        key = tuple(said.text for said in history[:count])
        joined = self._joined.get(key) or Said(role="system", text="\n\n".join(key))
        _keep(self._joined, key, joined, _KEPT)
        return [joined, *history[count:]]

    async def of(self, place: Placement, history: Sequence[Said], tools: Sequence[Tool]) -> Prompt:
        """The prompt of a call. Raises `TemplateError`, and `BadRequest` for ids outside the vocabulary and images that
        cannot be shown.
        """
        try:
            prompt = await self._of(place, history, tools)
        except ImageUnreadable as error:
            raise BadRequest(f"an image is not taken: {error}") from error
        if prompt.pictures:
            self._bound(prompt)
        return prompt

    def _bound(self, prompt: Prompt) -> None:
        """Raises `BadRequest` for more images than one attempt may show, and for places without one."""
        seen = self._images | {each.image for each in prompt.brought}
        if len(seen) > MAX_IMAGES or sum(len(each.data) for each in seen) > MAX_TASK_BYTES:
            raise BadRequest(f"an attempt may show {MAX_IMAGES} images and {MAX_TASK_BYTES >> 20} MiB of them at most")
        try:
            collapsed(prompt.ids, prompt.pictures)
        except ValueError as error:
            raise BadRequest(f"{error}: the policy has sampled one. Leave the image out") from error
        self._images = seen

    async def _of(self, place: Placement, history: Sequence[Said], tools: Sequence[Tool]) -> Prompt:
        base, drops = place.parent, False
        if base is not None and base.thinks and any(said.role == "user" for said in place.rest):
            drops = self._renderer.drops_thinking
        if base is not None and not (drops and self._renderer.begins_lineages):
            short = sum(len(said.text) for said in place.rest) <= _SHORT and not any(each.images for each in place.rest)
            placed = base, place.rest, tools, drops
            prompt = self._behind(*placed) if short else await asyncio.to_thread(self._behind, *placed)
            if prompt is not None:
                return prompt
        return await asyncio.to_thread(self._whole, history, tools)

    def sampled(self, node: Node, prompt: Prompt) -> None:
        """Keeps the list for the next call, which most often continues this one."""
        prompt.ids.extend(node.ids)
        _keep(self._lists, node.number, prompt.ids, _LISTS)

    def _behind(self, base: Node, rest: Sequence[Said], tools: Sequence[Tool], drops: bool) -> Prompt | None:
        """The prompt that continues a completion; None if the template cannot say what these messages add."""
        messages = self._messages(self._in_order(base, rest))
        try:
            found = self._renderer.following(base.ids, messages, tools, base.sent + len(base.ids))
        except (NoTools, NoVision):
            raise
        except TemplateError:
            return None
        known = self._lists.pop(base.number, None)
        ids = base.context() if known is None else known
        ids.extend(found.ids)
        return Prompt(
            ids=ids,
            base=base,
            added=array("I", found.ids),
            messages=messages,
            keeps_thinking=drops or base.keeps_thinking,
            pictures=[*pictures_of(base.path()), *found.pictures],
            brought=found.pictures,
        )

    def _whole(self, history: Sequence[Said], tools: Sequence[Tool]) -> Prompt:
        if history[0].role == "raw":
            return self._raw(history[0])
        messages = self._messages(self.canonical(history))
        found = self._renderer.opening(messages, tools)
        shown = found.pictures
        ids = found.ids
        return Prompt(ids=ids, base=None, added=array("I", ids), messages=messages, pictures=shown, brought=shown)

    def _raw(self, said: Said) -> Prompt:
        """A text that no template gets to see. Raises `BadRequest` for ids that a backend could not take."""
        if (unknown := max(said.token_ids, default=0)) >= self._renderer.vocabulary:
            ids_end = self._renderer.vocabulary - 1
            raise BadRequest(f"prompt has the id {unknown}: the vocabulary ends with {ids_end}. Use its tokenizer")
        ids = list(said.token_ids) or self._renderer.ids(said.text)
        return Prompt(ids=ids, base=None, added=array("I", ids), messages=[said.message()])

    def _messages(self, history: Sequence[Said]) -> list[Message]:
        """Later system messages stay where they are: as the user's where the template has no place for them."""
        told = [said.message() for said in history]
        if self._renderer.takes_late_system:
            return told
        return [
            Message(role="user", content=each.content) if each.role == "system" and place else each
            for place, each in enumerate(told)
        ]

    def _in_order(self, base: Node, rest: Sequence[Said]) -> list[Said]:
        """Results in the order of the calls that they answer, as templates take them."""

        def place(said: Said) -> int:
            found = self._given.place(said.answers)
            return found[1] if found is not None and found[0] == base.number else sys.maxsize

        runs = groupby(rest, key=lambda said: said.role == "tool")
        return [said for results, run in runs for said in (sorted(run, key=place) if results else run)]


def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Puts it behind all others, and drops what was used longest ago."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
