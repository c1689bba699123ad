"""Puts the images of a batch into payload files, and their names into its tasks: no queue holds an image.

Names come first, since they follow from the images alone: so nothing is written for a batch that is refused.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from prorl_mq.errors import InvalidTask, NoWorkersYet, PayloadUnavailable
from prorl_mq.schema.ids import public
from prorl_mq.schema.images.header import MAX_TASK_BYTES, ImageRefused, shape_of
from prorl_mq.schema.images.rows import FIELD, bytes_of, has_images, in_parts, sent, taken_out
from prorl_mq.schema.messages import BatchRequest, Stage, Task
from prorl_mq.schema.task_schema import Schema
from prorl_mq.store.payloads.images import image_again, names, put_image
from prorl_mq.store.payloads.limits import SMALL_BYTES
from prorl_mq.store.payloads.name import PayloadFile, named_file
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living


class TakenImage(NamedTuple):
    """An image that is to be put. `data` is None where it was sent by its name."""

    where: str
    data: bytes | None


class TakenBatch(NamedTuple):
    """A batch with names in the place of images, and each of these once, by its name."""

    request: BatchRequest
    images: Mapping[str, TakenImage]


async def named(request: BatchRequest, known: Mapping[str, Schema], *, direct: bool = False) -> TakenBatch:
    """The batch with names in the place of images; itself, where it has none. `direct`: its trainer reads Redis alone.
    `put` goes before any group that names them.

    Raises `InvalidTask`.
    """
    if not any(has_images(group.task.payload) for group in request.groups):
        return TakenBatch(request, {})
    groups, images = [], _Images()
    for group in request.groups:
        task = group.task
        if has_images(task.payload) and _takes(task, known[task.data_source], direct=direct):
            group = msgspec.structs.replace(group, task=await images.named(task))  # noqa: PLW2901
        groups.append(group)
    return TakenBatch(msgspec.structs.replace(request, groups=groups), images.found)


async def check_seen(store: Store, pool: str) -> None:
    """Refuses images for a pool, `TENANT:POOL`, whose model takes none, or with a worker that lacks their libraries,
    before a sandbox is made for them. Where no RUN worker is alive, or where one changes later, the job's first attempt
    says so.

    Raises `InvalidTask`, or `NoWorkersYet` for a worker that would ask without the images.
    """
    for worker in await living(store):
        if worker.stage is not Stage.RUN or not worker.slots or worker.sees(pool):
            continue
        if worker.sees(pool) is None:
            raise NoWorkersYet(
                f"tasks have images, and the RUN worker {worker.name} is of an older release, which asks without them: "
                "upgrade it or end it; what waits for that is sent again by our clients"
            )
        if worker.lacks_libraries(pool):
            raise InvalidTask(
                f"tasks have images, and the RUN worker {worker.name} lacks the libraries for them: install "
                "prorl-mq[images] in its environment, with the torch of its machine, and start it again"
            )
        raise InvalidTask(
            f"tasks have images, and the model that the RUN worker {worker.name} has for the pool {public(pool)!r} "
            "takes none: submit to a pool whose model has vision, or save the model's processor beside its tokenizer "
            "(`processor.save_pretrained(DIR)`) and start the worker again"
        )


async def put(store: Store, tenant: str, taken: TakenBatch) -> None:
    """Writes the images of a batch. Raises `InvalidTask` or `PayloadUnwritten`."""
    for name, image in taken.images.items():
        try:
            if image.data is None:
                await image_again(store, tenant, name)
            else:
                await put_image(store, tenant, image.data)
        except (ImageRefused, PayloadUnavailable) as error:
            raise InvalidTask(f"{image.where}: {error}") from None


async def put_again(store: Store, tenant: str, payload: Mapping[str, Any]) -> str:
    """The names of a task's images for another group that has it, in front of which they are put again.

    Raises `PayloadUnavailable` where one is gone.
    """
    found = names(payload)
    for name in dict.fromkeys(found):
        try:
            await image_again(store, tenant, name)
        except PayloadUnavailable as error:
            raise PayloadUnavailable(
                f"an image of the task cannot be had: {error}; or submit its batch again, which puts its images again, "
                "then this"
            ) from error
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


class _Images:
    """The images of one batch. One that it has many times is read once."""

    def __init__(self) -> None:
        self.found: dict[str, TakenImage] = {}
        self._known: dict[tuple[type, Any], PayloadFile] = {}

    async def named(self, task: Task) -> Task:
        """Raises `InvalidTask`."""
        try:
            payload, listed = taken_out(task.payload)
        except ImageRefused as error:
            raise InvalidTask(f"task {task.task_id!r}: {error}") from None
        names, size = list[str](), 0
        for number, each in enumerate(listed):
            where = f"task {task.task_id!r}, image {number}"
            try:
                file = await self._file(where, sent(each))
            except ImageRefused as error:
                raise InvalidTask(f"{where}: {error}") from None
            names.append(str(file))
            size += file.size  # also of one that was there before: each call has it as often as its text
            if size > MAX_TASK_BYTES:
                raise InvalidTask(
                    f"{where}: its images have more than {MAX_TASK_BYTES >> 20} MiB together, each counted as often as "
                    "it is there: scale them down, or compress them"
                )
        return msgspec.structs.replace(task, payload={**payload, FIELD: names})

    async def _file(self, where: str, given: Any) -> PayloadFile:
        if isinstance(given, str) and (name := named_file(given)):
            self.found.setdefault(given, TakenImage(where, None))
            return name
        if not isinstance(given, str | bytes):
            raise ImageRefused("it is neither a data: URL nor bytes: send its bytes, base64 as data:image/png;base64,…")
        key = (type(given), given)
        if key not in self._known:
            large = len(given) > SMALL_BYTES
            file, data = await asyncio.to_thread(_read, given) if large else _read(given)
            self.found[str(file)] = TakenImage(where, data)
            self._known[key] = file
        return self._known[key]


def _read(given: str | bytes) -> tuple[PayloadFile, bytes]:
    told = bytes_of(given)
    found = shape_of(told.data)
    said = told.kind.replace("image/jpg", "image/jpeg")
    if said and said != found.kind:
        raise ImageRefused(f"it is said to be {told.kind}, and is {found.kind}")
    return PayloadFile.of(told.data), told.data
