"""Images of tasks as payload files: the ingress puts them before the group that names them, RUN reads them.

What is put here was checked to be an image of the open part of a task, so that nothing sealed can come to be where RUN
reads. A group's hash names its images for as long as it has jobs: the collection finds them there.
"""

from collections.abc import Mapping
from typing import Any, Final

from prorl_mq.errors import InvalidTask, PayloadUnavailable, PayloadUnwritten
from prorl_mq.schema.images.header import MAX_BYTES, ImageRefused, shape_of
from prorl_mq.schema.images.placed import PromptImage
from prorl_mq.schema.images.rows import FIELD
from prorl_mq.store.payloads import reading, writing
from prorl_mq.store.payloads.name import PayloadFile, named_file
from prorl_mq.store.store import Store

AGAIN_S: Final = 1.0  # that a file which is named has to appear, where somebody waits for the answer


async def put_image(store: Store, tenant: str, data: bytes) -> PayloadFile:
    """Stores an image. Raises `ImageRefused`, `InvalidTask` where there is no place for it, or `PayloadUnwritten`."""
    shape_of(data)
    files = store.payloads
    try:
        name = await writing.put_content(files, tenant, data) if files is not None else None
    except (OSError, TimeoutError) as error:
        said = getattr(error, "strerror", "") or "it does not answer"
        raise PayloadUnwritten(
            f"an image of {len(data)} bytes cannot be written to {files and files.directory}: {said}"
        ) from error
    if name is None:
        place = files.directory if files is not None else "`payloads` beside the rendezvous file"
        raise InvalidTask(f"images of tasks need a directory for payloads: make {place}, on storage that all nodes see")
    return name


async def image_again(store: Store, tenant: str, name: str) -> PayloadFile:
    """Puts an image again that lies there by its name, so that the collection leaves it for whoever names it next.

    Raises `ImageRefused`, and as `put_image`.
    """
    return await put_image(store, tenant, (await image(store, tenant, name, within_s=AGAIN_S)).data)


def names(payload: Mapping[str, Any]) -> list[str]:
    """The files that a task names which was taken in."""
    found = payload.get(FIELD)
    return [each for each in found if isinstance(each, str) and named_file(each)] if isinstance(found, list) else []


async def image(store: Store, owner: str, name: str, *, within_s: float = reading.READ_S) -> PromptImage:
    """An image of a task. Raises `PayloadUnavailable`, or `ImageRefused` where the name is that of something else."""
    file = named_file(name)
    if file is None:
        raise ImageRefused(f"{name[:80]!r} names no image")
    if file.size > MAX_BYTES:  # before a trajectory of gigabytes is read for it
        raise ImageRefused(f"{name} names no image: it has more than {MAX_BYTES} bytes")
    data = await reading.get(store, owner, name, within_s=within_s)
    if data is None:
        raise PayloadUnavailable(f"the image {name} is gone")
    shape = shape_of(data)
    return PromptImage(kind=shape.kind, width=shape.width, height=shape.height, data=data)
