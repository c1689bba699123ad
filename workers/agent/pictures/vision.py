"""A model's own processor: how many ids stand for an image, and which.

The chat template writes one id for an image; the processor says what stands in its place once its size is known. Both
are proved against each other on a synthetic conversation before they are used.
"""

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from prorl_mq.process.tokenizers import PROCESSOR, sees
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.images.pixels import ImageExtraMissing, decoded
from prorl_mq.schema.images.placed import PromptImage
from workers.agent.pictures.messages import PLACE
from workers.agent.template import USER, ChatTemplate, TemplateError
from workers.inference.pictures import Picture

_KEPT: Final = 256  # images whose ids are known: the samples of a group have the same ones


class NoVision(TemplateError):
    """A rollout has images, and its model takes none."""

    cause = Cause.ROW


class ImagesMismatched(TemplateError):
    """The ids of a prompt do not stand for its images, one for one."""

    cause = Cause.ROW


class Expanded(msgspec.Struct, frozen=True):
    """Ids with those of images in their places, and where these are."""

    ids: list[int]
    pictures: Sequence[Picture] = ()

    @property
    def images(self) -> list[PromptImage]:
        return [each.image for each in self.pictures]


class Vision:
    """The images of one model. `processor` is of transformers: its `image_token` stands for an image."""

    def __init__(self, name: str, processor: Any, tokenizer: Any) -> None:
        self._name, self._processor = name, processor
        token = getattr(processor, "image_token", None)
        found = tokenizer.convert_tokens_to_ids(str(token)) if token else None
        if not isinstance(found, int) or found == tokenizer.unk_token_id:
            raise NoVision(f"the processor of {name} names no token that stands for an image: it cannot be given any")
        self.token, self.id = str(token), found
        self._known: OrderedDict[bytes, list[int]] = OrderedDict()
        self._lock = threading.Lock()

    def expanded(self, ids: Sequence[int], images: Sequence[PromptImage], before: int = 0) -> Expanded:
        """Ids of the template with those of the images in their places, which are counted from `before`.

        Raises `ImagesMismatched` or `ImageUnreadable`.
        """
        count = sum(each == self.id for each in ids)
        if count != len(images):
            raise ImagesMismatched(
                f"the prompt has {len(images)} images, and its ids have {count} places for one ({self.token}): a text "
                "must not hold that token, and the chat template must write it once for each image"
            )
        made: list[int] = []
        pictures: list[Picture] = []
        for each in ids:
            if each != self.id:
                made.append(each)
                continue
            image = images[len(pictures)]
            run = self._run(image, len(pictures))
            pictures.append(Picture(image=image, start=before + len(made), length=len(run), pad=self.id))
            made += run
        return Expanded(made, pictures)

    def prove(self, template: ChatTemplate) -> None:
        """A conversation with two images of different sizes, rendered by the template and read by the processor as a
        whole, has the ids that are made here, and each image stands where its message has it.

        Raises `NoVision`.
        """
        one, other = _blank(64, 96), _blank(320, 160)
        asked = [{**USER, "content": f"a {PLACE} b {PLACE} c"}]
        for images in ([one, other], [other, one]):
            made = self.expanded(template.render(asked, generate=True), images).ids
            if made != self.read(template.written(asked), images):
                raise NoVision(
                    f"the processor of {self._name} makes other ids of a conversation with images than its chat "
                    "template and the images one by one: this model's images cannot be given as ids"
                )

    def read(self, text: str, images: Sequence[PromptImage]) -> list[int]:
        """The ids that the processor makes of a whole conversation's text."""
        seen = [decoded(each, number) for number, each in enumerate(images)]
        try:
            [ids] = self._processor(text=[text], images=seen, add_special_tokens=False)["input_ids"]
        except Exception as error:  # it is the model's, and raises what it likes
            said = " ".join(str(error).split())[:300]
            raise ImagesMismatched(
                f"the image processor of {self._name} failed: {type(error).__name__}: {said}"
            ) from error
        return [int(each) for each in ids]

    def _run(self, image: PromptImage, number: int) -> list[int]:
        key = hashlib.blake2b(image.data, digest_size=32).digest()
        with self._lock:  # a processor's tokenizer is for one thread at a time
            if key not in self._known:
                self._known[key] = self.read(self.token, [image])
                if self.id not in self._known[key]:
                    del self._known[key]
                    raise ImagesMismatched(f"the processor of {self._name} gives no id for image {number}")
            self._known.move_to_end(key)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
            return self._known[key]


def _blank(width: int, height: int) -> PromptImage:
    from PIL import Image

    made = io.BytesIO()
    Image.new("RGB", (width, height), (90, 120, 150)).save(made, "PNG")
    return PromptImage(kind="image/png", width=width, height=height, data=made.getvalue())


def load(directory: Path, template: ChatTemplate) -> Vision:
    """The images of the model in a directory, proved. Raises `NoVision` or `ImageExtraMissing`. It takes seconds."""
    if not sees(directory):
        raise NoVision(
            f"the rollout has images, and the model {directory.name} takes none: {' or '.join(PROCESSOR)} lies not in "
            "its directory. Use a model with vision, and save its processor there (`processor.save_pretrained(DIR)`)"
        )
    try:
        from transformers import AutoProcessor

        processor = AutoProcessor.from_pretrained(str(directory), local_files_only=True)
    except ImportError as error:
        said = " ".join(str(error).split())[:300]
        raise ImageExtraMissing(
            f"the image processor of {directory.name} needs more than this environment has: install prorl-mq[images], "
            f"with the torch of your machine ({said})"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = " ".join(str(error).split())[:300]
        raise NoVision(f"the image processor of {directory.name} cannot be loaded: {said}") from error
    return proved(directory.name, processor, template)


def proved(name: str, processor: Any, template: ChatTemplate) -> Vision:
    """The images of a model by its processor. Raises `NoVision`."""
    made = Vision(name, processor, template.tokenizer)
    try:
        made.prove(template)
    except NoVision:
        raise
    except TemplateError as error:
        raise NoVision(f"{error} (a conversation of the check, before any task's)") from error
    return made
