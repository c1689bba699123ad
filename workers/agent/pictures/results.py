"""Images that tools answer with, of one rollout: whether its model can be shown one, and where its turns keep them."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.images.header import MAX_IMAGES, MAX_TASK_BYTES
from prorl_mq.schema.images.pixels import ImageUnreadable
from prorl_mq.schema.images.placed import PromptImage
from prorl_mq.schema.images.rows import MARK
from prorl_mq.schema.trajectory import ToolCall
from prorl_mq.schema.turns import CallResult
from workers.agent.hermes import Message
from workers.agent.journal import Journal, LogDiffers
from workers.agent.pictures.messages import Pictured
from workers.agent.pictures.vision import Expanded
from workers.agent.renderer import Renderer
from workers.agent.template import TemplateError
from workers.agent.tools import Tool
from workers.handler import TurnLog
from workers.inference.pictures import Picture, pads


class ToolPictures:
    """`journal.images` has all images of the rollout in the order in which they came; a log names them by number."""

    def __init__(
        self, renderer: Renderer, journal: Journal, log: TurnLog | None, tools: Sequence[Tool], opening: Expanded
    ) -> None:
        self._renderer, self._journal, self._log = renderer, journal, log
        self._offered = any(tool.shows for tool in tools)
        self._turn: dict[int, tuple[PromptImage, str]] = {}  # by the place of the call; with the name of its file
        journal.images = opening.images

    async def unwanted(self, pictures: Sequence[Picture]) -> set[int]:
        """The ids that the policy must not sample: those that stand for an image, also for one that may still come."""
        if self._offered and self._renderer.sees:
            return {(await asyncio.to_thread(self._renderer.vision)).id}
        return pads(pictures)

    def admit(self, image: PromptImage) -> str:
        """Why the model cannot be shown this image; empty if it can. Call it in a thread."""
        shown = self._journal.images
        if not self._renderer.sees:
            return "this model takes no images. Read what you need from the file as text, with a program"
        if len(shown) >= MAX_IMAGES or sum(len(each.data) for each in shown) + len(image.data) > MAX_TASK_BYTES:
            most = f"{MAX_IMAGES} images and {MAX_TASK_BYTES >> 20} MiB of them"
            return f"a rollout is shown at most {most}, and this one was shown {len(shown)}"
        try:
            self._renderer.following([self._renderer.end_of_turn], [_shown(MARK, image)])
        except (TemplateError, ImageUnreadable) as error:
            return str(error)
        return ""

    async def keep(self, place: int, image: PromptImage | None) -> str:
        """Takes the image of a new answer. The name of its file; empty where there is none."""
        if image is None:
            return ""
        name = await self._log.keep_file(encode(image)) if self._log is not None else ""
        self._take(place, image, name)
        return name

    async def restore(self, place: int, past: CallResult) -> None:
        """Takes the image of a logged answer. Raises `LogDiffers` once its file is gone."""
        if not past.image:
            return
        found = await self._log.kept_file(past.image) if self._log is not None else None
        if found is None:
            raise LogDiffers(f"the image {past.image} that a tool has shown is gone")
        self._take(place, decode(found, PromptImage), past.image)

    def _take(self, place: int, image: PromptImage, name: str) -> None:
        self._journal.images = [*self._journal.images, image]
        self._turn[place] = image, name

    def logged(self, done: Sequence[ToolCall]) -> list[CallResult]:
        """The results of a turn, for its log."""
        names = {place: name for place, (_, name) in self._turn.items()}
        return [
            CallResult(each.result, each.ok, each.refused, each.seconds, names.get(place, ""))
            for place, each in enumerate(done)
        ]

    def messages(self, done: Sequence[ToolCall], replied: str, left: str) -> list[Message]:
        """The results of a turn, for its model, or the reply where it called no tool; behind them what is left. The
        next turn begins without images.
        """
        turn, self._turn = self._turn, {}
        found = [
            _shown(call.result, turn[place][0]) if place in turn else Message(role="tool", content=call.result)
            for place, call in enumerate(done)
        ] or [Message(role="user", content=replied)]
        if left:
            found[-1] = replace(found[-1], content=f"{found[-1].content}\n{left}")
        return found


def _shown(text: str, image: PromptImage) -> Message:
    return Pictured(role="tool", content=text, images=[image])
