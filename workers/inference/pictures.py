"""Images in a call: sent beside ids in which one id stands for each, and compared with what the backend made of them.

Our ids hold all that stand for an image, as the model's own processor gives them. vLLM takes one for each image, puts
its own in their place, and tells which, and where. What it tells must be what we have: else the record would hold other
ids than the model has read. It takes fewer images than there are places without a word.
"""

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from prorl_mq.schema.faults import Cause
from prorl_mq.schema.images.placed import PromptImage
from prorl_mq.schema.trajectory import Trajectory
from workers.inference.protocol import Completion, InferenceError

if TYPE_CHECKING:
    from workers.inference.request import GenerateRequest


class ImagesUnsupported(InferenceError):
    """A backend takes no images with ids."""

    retryable = False


class ImagesDiffer(InferenceError):
    """A backend has put other ids in the places of images than the model's processor does here."""

    retryable = False


class ImagesUnshown(Exception):
    """A task family has shown the policy none of the images that its task has."""

    retryable = False
    cause = Cause.WORKER


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a sequence of ids: which of them stand for it. `pad` is the one that stands for it unexpanded."""

    image: PromptImage
    start: int
    length: int
    pad: int


def shown(pictures: Sequence[Picture]) -> dict[str, Any]:
    """The argument of `Policy.generate`; none where there are no images."""
    return {"pictures": pictures} if pictures else {}


def collapsed(ids: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
    """The ids with one for each image. Raises `ValueError` for others that stand for one: no backend would tell."""
    made: list[int] = []
    before = 0
    for each in pictures:
        made += ids[before : each.start]
        made.append(each.pad)
        before = each.start + each.length
    made += ids[before:]
    count = sum(each in pads(pictures) for each in made)
    if count != len(pictures):
        raise ValueError(f"{count - len(pictures)} ids of a prompt stand for images that are not sent with it")
    return made


def urls(pictures: Sequence[Picture]) -> list[str]:
    """The images as data: URLs. One that is there many times is one text."""
    made = {id(image): data_url(image) for image in {id(each.image): each.image for each in pictures}.values()}
    return [made[id(each.image)] for each in pictures]


def parts(pictures: Sequence[Picture]) -> list[dict[str, str]]:
    """The images as vLLM's `content_parts` has them."""
    return [{"type": "image_url", "url": url} for url in urls(pictures)]


def data_url(image: PromptImage) -> str:
    return f"data:{image.kind};base64,{base64.b64encode(image.data).decode()}"


def check_read(
    backend: str, request: "GenerateRequest", ids: Sequence[int] | None, places: Mapping[str, Any] | None
) -> None:
    """Compares the ids and the places that a backend tells. Raises `ImagesUnsupported` or `ImagesDiffer`."""
    if ids is None or not places:
        raise ImagesUnsupported(
            f"backend {backend}: it does not tell which ids stand for {len(request.pictures)} images, so it may have "
            "left them out: images need vLLM from 0.32 on, with a model that has vision"
        )
    told = [(each.get("offset"), each.get("length")) for each in places.get("image", ())]
    wanted = [(each.start, each.length) for each in request.pictures]
    if told != wanted or list(ids) != list(request.prompt_ids):
        raise ImagesDiffer(
            f"backend {backend}: its images take (start, length) {told} of {len(ids)} ids, and {wanted} of "
            f"{len(request.prompt_ids)} by the processor of the RUN worker: give both the same model directory, and "
            "the server no other --mm-processor-kwargs"
        )


def check_ids(backend: str, request: "GenerateRequest", ids: Sequence[int] | None) -> None:
    """Compares the ids that an SGLang tells; it tells no places. Raises `ImagesUnsupported` or `ImagesDiffer`."""
    if ids is None:
        raise ImagesUnsupported(
            f"backend {backend}: it does not tell which ids stand for {len(request.pictures)} images, so it may have "
            "left them out: images need an SGLang that knows return_prompt_token_ids, with a model that has vision"
        )
    if list(ids) != list(request.prompt_ids):
        raise ImagesDiffer(
            f"backend {backend}: it has read {len(ids)} other ids with images than the {len(request.prompt_ids)} that "
            "were sent. Give it and the RUN worker the same model directory; where they have it, the policy has "
            "sampled ids that its text does not encode to, which SGLang reads again from the text: use vLLM"
        )


def unsupported(backend: str, protocol: str) -> ImagesUnsupported:
    """The error for a call with images in a protocol that takes none beside ids."""
    return ImagesUnsupported(
        f"backend {backend}: the protocol {protocol} takes no images beside ids: use a vLLM that was started with "
        "--enable-scale-out, which opens /inference/v1/generate, or an SGLang"
    )


def pads(pictures: Sequence[Picture]) -> set[int]:
    """The ids that stand for an image, which a policy should not sample."""
    return {each.pad for each in pictures}


def without(completion: Completion, unwanted: Collection[int], before: int) -> Completion:
    """The completion in front of the first id that stands for an image, one of `unwanted`: it stops there, as at a stop
    token that is not kept. No image belongs to it, so no trainer could compute what follows. `before`: the tokens of
    its prompt.
    """
    end = next((at for at, each in enumerate(completion.ids) if each in unwanted), None) if unwanted else None
    if end is None:
        return completion
    spans = [msgspec.structs.replace(each, end=min(each.end, end)) for each in completion.spans if each.start < end]
    routes = completion.routes and completion.routes.until(before + end - 1)
    return msgspec.structs.replace(
        completion, ids=completion.ids[:end], logprobs=completion.logprobs[:end], spans=spans, routes=routes,
        finish_reason="stop", stop_token=None,
    )  # fmt: skip


def check_shown(images: Sequence[PromptImage], trajectory: Trajectory | None) -> None:
    """Raises `ImagesUnshown` for a rollout of a task with images that its policy has not seen."""
    if images and trajectory is not None and trajectory.turns and not trajectory.images:
        raise ImagesUnshown(
            f"the task has {len(images)} images, and its family has shown the policy none of them: give run_agent "
            "messages with images (workers.agent.pictures.messages.attached)"
        )
