"""Puts the images of a batch into payload files, and their names into its tasks: no queue holds an image."""

from collections.abc import Mapping
from typing import Any

import msgspec

from prorl_mq.errors import InvalidTask, PayloadUnavailable
from prorl_mq.schema.images.header import MAX_TASK_BYTES, ImageRefused, shape_of
from prorl_mq.schema.images.rows import FIELD, bytes_of, has_images, in_parts, taken_out
from prorl_mq.schema.messages import BatchRequest, Task
from prorl_mq.schema.task_schema import Schema
from prorl_mq.store.payloads.images import image_again, names, put_image
from prorl_mq.store.payloads.name import PayloadFile, named_file
from prorl_mq.store.store import Store


async def with_names(
    store: Store, tenant: str, request: BatchRequest, known: Mapping[str, Schema], *, direct: bool = False
) -> BatchRequest:
    """The batch with names in the place of images; itself, where it has none. `direct`: its trainer reads Redis alone.

    Raises `InvalidTask` or `PayloadUnwritten`.
    """
    if not any(has_images(group.task.payload) for group in request.groups):
        return request
    groups = []
    for group in request.groups:
        task = group.task
        if has_images(task.payload) and _takes(task, known[task.data_source], direct=direct):
            group = msgspec.structs.replace(group, task=await _named(store, tenant, task))  # noqa: PLW2901
        groups.append(group)
    return msgspec.structs.replace(request, groups=groups)


async def put_again(store: Store, tenant: str, payload: Mapping[str, Any]) -> str:
    """The names of a task's images for another group that has it, in front of which they are put again.

    Raises `PayloadUnavailable` where one is gone.
    """
    found = names(payload)
    for name in dict.fromkeys(found):
        await image_again(store, tenant, name)
    return " ".join(found)


def _takes(task: Task, schema: Schema, *, direct: bool) -> bool:
    """False where a family that knows nothing of images has a field of that name for something else.

    Raises `InvalidTask`.
    """
    if FIELD in {*schema.optional, *schema.required}:
        if direct:
            raise InvalidTask(f"task {task.task_id!r} has images, and its trainer reads Redis alone: submit over HTTP")
        return True
    given = task.payload.get(FIELD)
    if any(in_parts(task.payload)) or (isinstance(given, list) and any(map(_is_image, given))):
        raise InvalidTask(f"task {task.task_id!r} has images, and the family {task.data_source!r} takes none")
    return False


def _is_image(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "bytes" in value
    return isinstance(value, bytes) or (isinstance(value, str) and value.startswith(("data:", "file:")))


async def _named(store: Store, tenant: str, task: Task) -> Task:
    try:
        payload, listed = taken_out(task.payload)
    except ImageRefused as error:
        raise InvalidTask(f"task {task.task_id!r}: {error}") from None
    found: list[PayloadFile] = []
    for number, each in enumerate(listed):
        try:
            found.append(await _stored(store, tenant, each))
        except (ImageRefused, PayloadUnavailable) as error:
            raise InvalidTask(f"task {task.task_id!r}, image {number}: {error}") from None
        if sum(file.size for file in set(found)) > MAX_TASK_BYTES:
            raise InvalidTask(
                f"task {task.task_id!r}, image {number}: its images have more than {MAX_TASK_BYTES >> 20} MiB "
                "together: scale them down, or compress them"
            )
    return msgspec.structs.replace(task, payload={**payload, FIELD: [str(each) for each in found]})


async def _stored(store: Store, tenant: str, given: Any) -> PayloadFile:
    if isinstance(given, str) and named_file(given):
        return await image_again(store, tenant, given)
    told = bytes_of(given)
    found = shape_of(told.data)
    said = told.kind.replace("image/jpg", "image/jpeg")
    if said and said != found.kind:
        raise ImageRefused(f"it is said to be {told.kind}, and is {found.kind}")
    return await put_image(store, tenant, told.data)
