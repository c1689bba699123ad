"""Images of a batch become payload files with names in its tasks; they stay for as long as a job may read them."""

import asyncio
import base64
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from api.problems import problem_of
from prorl_mq.duties.intake import Intake
from prorl_mq.duties.payloads import PayloadCollection
from prorl_mq.errors import Conflict, InvalidTask, PayloadUnavailable, PayloadUnwritten, ProrlError
from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.ids import JobRef, group_ref, public
from prorl_mq.schema.images.header import MAX_BYTES, ImageRefused
from prorl_mq.schema.items import Advance, Claim, GroupSpec
from prorl_mq.schema.messages import BatchRequest, ForkOrder, GroupRequest, Stage, Task
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service import fork, submit
from prorl_mq.service.images import taking
from prorl_mq.store import work
from prorl_mq.store.payloads import images, reading
from prorl_mq.store.payloads.files import PayloadFiles, Space
from prorl_mq.store.payloads.limits import GRACE_S
from prorl_mq.store.payloads.name import PayloadFile, named_file
from tests.chaos.handler import said
from tests.payloads.conftest import TENANT, age, files, queue, under
from tests.pictures.seeing import drawn, picture
from tests.support.queue import RUN, Queue, spec
from workers.agent.pictures import messages as shown
from workers.handler import Handler, Ran
from workers.inference.pictures import ImagesUnshown
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.work import Carried, Work

__all__ = ["files", "queue"]
pytestmark = pytest.mark.anyio
ANY: Any = None
RED, BLUE = drawn(60, 60), drawn(90, 30, "blue")


def url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def batch(*payloads: dict[str, Any], batch_id: str = "b", family: str = "seeing") -> BatchRequest:
    tasks = [Task(task_id=f"t{at}", data_source=family, payload=each) for at, each in enumerate(payloads)]
    return BatchRequest(run_id="r", batch_id=batch_id, groups=[GroupRequest(task=each) for each in tasks])


ASKED = {"prompt": "<image> or <image>?", "images": [url(RED), {"bytes": BLUE}]}


@pytest.fixture
async def known(queue: Queue) -> Queue:
    families = {"seeing": Schema(optional=("prompt", "images")), "blind": Schema(open_ended=True)}
    await work.enroll(queue.store, families, None)
    return queue


async def opened(queue: Queue, group: str) -> GroupSpec:
    return decode(await queue.command("GET", queue.keys.open(group_ref(RUN, group))), GroupSpec)


async def collected(queue: Queue, files: PayloadFiles) -> None:
    made = PayloadCollection(queue.store, files, grace_s=GRACE_S, settled_s=0.0)
    async for _ in cast("Any", made)._collect():
        pass


async def test_no_queue_holds_an_image_and_a_repeat_is_the_same_batch(known: Queue, files: PayloadFiles) -> None:
    await submit.accept(known.store, TENANT, batch(ASKED))
    spec = await opened(known, "b-0")
    names: Any = spec.payload["images"]
    assert [named_file(each) for each in names] == [PayloadFile.of(RED), PayloadFile.of(BLUE)]
    assert len(under(files.directory)) == 2
    for key in cast("list[bytes]", await known.command("KEYS", "*")):
        assert RED[:40] not in (await known.command("DUMP", key) or b"")
    assert (await submit.accept(known.store, TENANT, batch(ASKED))).repeated
    named = batch({**ASKED, "images": names}, batch_id="by name")
    await submit.accept(known.store, TENANT, named)
    assert (await opened(known, "by name-0")).payload == spec.payload


async def test_images_stay_while_their_group_is_there_and_go_with_it(known: Queue, files: PayloadFiles) -> None:
    """The control: without the names in the group's hash, the next collection takes them."""
    await submit.accept(known.store, TENANT, batch(ASKED))
    name = PayloadFile.of(RED)
    age(files, name)
    await collected(known, files)
    assert len(under(files.directory)) == 2
    await known.command("HDEL", known.keys.group(group_ref(RUN, "b-0")), "images")
    await collected(known, files)
    assert under(files.directory) == {str(files.path(TENANT, PayloadFile.of(BLUE)).relative_to(files.directory))}


async def forkable(known: Queue, monkeypatch: pytest.MonkeyPatch) -> JobRef:
    """A job of a task with images, with turns that a fork can begin with."""
    await submit.accept(known.store, TENANT, batch(ASKED))
    ref = group_ref(RUN, "b-0")
    await known.store.admit(RUN, [await known.wanted(ref)])

    async def source(*_: Any) -> Any:
        return fork._Source([b"", b""])

    monkeypatch.setattr(fork, "_source", source)
    monkeypatch.setattr(fork, "sampled_tokens", lambda _: 0)
    return JobRef(f"{ref}:0")


async def test_a_fork_names_them_too_and_puts_them_again(
    known: Queue,
    files: PayloadFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = await forkable(known, monkeypatch)
    ref = group_ref(RUN, "b-0")
    for name in (PayloadFile.of(RED), PayloadFile.of(BLUE)):
        age(files, name)
    await fork.fork(known.store, job, ForkOrder(turn=0, name="tree"))
    told = await known.command("HGET", known.keys.group(group_ref(RUN, "tree")), "images")
    assert told.decode().split() == (await opened(known, "b-0")).payload["images"]
    await known.command("DEL", known.keys.group(ref))  # as if it had been acknowledged while the collection walks
    await known.command("DEL", known.keys.group(group_ref(RUN, "tree")))
    await collected(known, files)
    assert len(under(files.directory)) == 2, "they were put again"


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"prompt": "<image>", "images": ["https://a.b/c.png"]}, "task 't0', image 0: it is no data: URL"),
        ({"prompt": "<image>", "images": [url(RED, "jpeg")]}, "said to be image/jpeg, and is image/png"),
        ({"prompt": "<image>", "images": [url(b"GIF89a" + bytes(99))]}, "begin as no PNG"),
        ({"prompt": "no", "images": [url(RED)]}, "1 images, and its text has 0 times <image>"),
        ({"prompt": "<image>" * 10_000, "images": [url(RED)] * 10_000}, "10000 images; 64 are allowed"),
        ({"prompt": "<image>", "images": [str(PayloadFile.of(b"of nobody"))]}, "task 't0', image 0"),
    ],
    ids=["address", "other kind", "GIF", "marks", "10,000", "unknown name"],
)
async def test_what_is_no_image_is_refused_at_submission(
    known: Queue,
    files: PayloadFiles,
    payload: dict[str, Any],
    said: str,
) -> None:
    with pytest.raises(InvalidTask, match=said):
        await submit.accept(known.store, TENANT, batch(payload))
    assert not under(files.directory)


async def test_a_name_of_another_tenant_or_of_no_image_gives_nothing(known: Queue, files: PayloadFiles) -> None:
    files.write("other", RED)
    named = batch({"prompt": "<image>", "images": [str(PayloadFile.of(RED))]})
    with pytest.raises(InvalidTask, match="image 0"):
        await submit.accept(known.store, TENANT, named)
    secret = files.write(TENANT, b"a trajectory of this tenant")
    with pytest.raises(InvalidTask, match="begin as no PNG"):
        await submit.accept(known.store, TENANT, batch({"prompt": "<image>", "images": [str(secret)]}))


async def test_images_of_a_task_have_a_limit_together_also_by_name(
    known: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trajectories have them, too, and its calls: one that is there twice counts twice."""
    monkeypatch.setattr(taking, "MAX_TASK_BYTES", len(RED) + len(BLUE) - 1)
    names = [str(files.write(TENANT, each)) for each in (RED, BLUE)]
    for number, given in enumerate((ASKED["images"], names)):
        with pytest.raises(InvalidTask, match="image 1: its images have more than"):
            await submit.accept(known.store, TENANT, batch({**ASKED, "images": given}, batch_id=f"b{number}"))
    twice = batch({**ASKED, "images": [names[0]] * 2}, batch_id="twice")
    monkeypatch.setattr(taking, "MAX_TASK_BYTES", 2 * len(RED) - 1)
    with pytest.raises(InvalidTask, match="image 1: its images have more than"):
        await submit.accept(known.store, TENANT, twice)
    monkeypatch.setattr(taking, "MAX_TASK_BYTES", 2 * len(RED))
    await submit.accept(known.store, TENANT, twice)


async def test_an_image_that_a_batch_has_often_is_read_and_put_once(
    known: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[bytes] = []
    looked: list[bytes] = []
    write, read = PayloadFiles.write, taking._read

    def writes(self: PayloadFiles, tenant: str, data: bytes) -> PayloadFile:
        put.append(data)
        return write(self, tenant, data)

    def reads(given: str | bytes) -> tuple[PayloadFile, bytes]:
        found = read(given)
        looked.append(found[1])
        return found

    monkeypatch.setattr(PayloadFiles, "write", writes)
    monkeypatch.setattr(taking, "_read", reads)
    many = {"prompt": "<image>" * 3, "images": [url(RED), url(RED), {"bytes": BLUE}]}
    await submit.accept(known.store, TENANT, batch(many, many))
    assert sorted(looked) == sorted([RED, BLUE])
    assert sorted(put) == sorted([RED, BLUE])
    names = {"prompt": "<image>" * 3, "images": [str(PayloadFile.of(RED))] * 3}
    put.clear()
    await submit.accept(known.store, TENANT, batch(names, names, batch_id="by name"))
    assert put == [RED]


@pytest.mark.parametrize("wrong", ["family's field", "host", "name twice", "second image"])
async def test_nothing_is_written_for_a_batch_that_is_refused(known: Queue, files: PayloadFiles, wrong: str) -> None:
    """The control: the same batch without what is wrong writes two files."""
    request = batch(ASKED, ASKED)
    good, bad = request.groups
    task = bad.task
    if wrong == "family's field":
        task = msgspec.structs.replace(task, payload={**task.payload, "unknown": 1})
    elif wrong == "host":
        task = msgspec.structs.replace(task, egress=["no host: at all"])
    elif wrong == "second image":
        task = msgspec.structs.replace(task, payload={"prompt": "<image>", "images": ["https://a.b/c.png"]})
    bad = msgspec.structs.replace(bad, task=task, group_id="b-0" if wrong == "name twice" else None)
    with pytest.raises(InvalidTask):
        await submit.accept(known.store, TENANT, msgspec.structs.replace(request, groups=[good, bad]))
    assert not under(files.directory)
    await submit.accept(known.store, TENANT, request)
    assert len(under(files.directory)) == 2


async def test_images_leave_room_for_trajectories(
    known: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PayloadFiles, "space", lambda _: Space(free=4 << 30, total=100 << 30))
    with pytest.raises(PayloadUnwritten, match=r"is almost full: 4\.0 of 100\.0 GiB are free"):
        await submit.accept(known.store, TENANT, batch(ASKED))
    assert not under(files.directory)
    monkeypatch.setattr(PayloadFiles, "space", lambda _: Space(free=6 << 30, total=100 << 30))
    await submit.accept(known.store, TENANT, batch(ASKED))


async def test_a_name_of_something_large_is_refused_before_it_is_read(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: one of an image's size is read."""
    read: list[PayloadFile] = []

    def reads(_: Any, __: str, name: PayloadFile, **___: Any) -> bytes:
        read.append(name)
        return RED

    monkeypatch.setattr(PayloadFiles, "read", reads)
    with pytest.raises(ImageRefused, match="names no image: it has more than"):
        await images.image(queue.store, TENANT, str(PayloadFile(MAX_BYTES + 1, "0" * 64)))
    assert not read
    assert (await images.image(queue.store, TENANT, str(PayloadFile(MAX_BYTES, "0" * 64)))).data == RED


async def test_a_full_disk_is_told_as_that(known: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PayloadFiles, "write", full)
    with pytest.raises(PayloadUnwritten, match="No space left on device") as raised:
        await submit.accept(known.store, TENANT, batch(ASKED))
    assert problem_of(raised.value).status == 503
    assert files.directory.is_dir()


async def test_families_and_places_that_take_none_refuse_by_name(known: Queue, files: PayloadFiles) -> None:
    with pytest.raises(InvalidTask, match="the family 'blind' takes none"):
        await submit.accept(known.store, TENANT, batch(ASKED, family="blind"))
    named = {"images": ["python:3.12"], "prompt": "which?"}  # something else of that name
    await submit.accept(known.store, TENANT, batch(named, batch_id="else", family="blind"))
    assert (await opened(known, "else-0")).payload == named
    with pytest.raises(InvalidTask, match="its trainer reads Redis alone: submit over HTTP"):
        await submit.accept(known.store, TENANT, batch(ASKED), direct=True)
    files.directory.rmdir()
    with pytest.raises(InvalidTask, match="images of tasks need a directory for payloads: make"):
        await submit.accept(known.store, TENANT, batch(ASKED))


async def test_a_fork_of_a_trainer_that_reads_redis_alone_is_refused(
    known: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its submission is. The control: over HTTP it is made."""
    job = await forkable(known, monkeypatch)
    with pytest.raises(Conflict, match="its task has images, and who asks reads Redis alone: send the fork over HTTP"):
        await fork.fork(known.store, job, ForkOrder(turn=0, name="tree"), direct=True)
    assert (await fork.fork(known.store, job, ForkOrder(turn=0, name="tree"))).jobs


async def test_a_fork_whose_image_is_gone_says_what_to_do(
    known: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await forkable(known, monkeypatch)
    monkeypatch.setattr(images, "AGAIN_S", 0.0)
    files.remove(TENANT, PayloadFile.of(RED))
    with pytest.raises(PayloadUnavailable, match="or submit its batch again, which puts its images again, then this"):
        await fork.fork(known.store, job, ForkOrder(turn=0, name="tree"))
    assert (await submit.accept(known.store, TENANT, batch(ASKED))).repeated
    assert (await fork.fork(known.store, job, ForkOrder(turn=0, name="tree"))).jobs


@pytest.mark.parametrize("raised", [PayloadUnavailable("gone: mount it"), PayloadUnwritten("full: make room")])
async def test_the_intake_answers_what_becomes_of_files(
    known: Queue, monkeypatch: pytest.MonkeyPatch, raised: ProrlError
) -> None:
    """The control is of the intake's own tests: what it does not know by name is a defect, with 500."""

    async def fails(*_: Any, **__: Any) -> Any:
        raise raised

    monkeypatch.setattr(fork, "fork", fails)
    asked = {"type": "fork", "reply": "f", "id": f"{public(RUN)}:b-0:0", "order": {"turn": 0, "n": 1}}
    answer = await Intake(known.store).answer(RUN, "1-1", encode(asked))
    assert (answer.ok, answer.status, answer.error) == (False, 503, str(raised))


class Seeing:
    """An agent that shows its images, unless it was told not to."""

    data_sources = (spec().data_source,)

    def __init__(self, *, shows: bool = True) -> None:
        self.shows = shows
        self.seen: list[Any] = []

    async def run(self, _context: Any) -> Ran:
        self.seen += shown.of_job()
        made = said(10, 0)
        return Ran(trajectory=msgspec.structs.replace(made, images=self.seen, image_id=99) if self.shows else made)


async def acted(queue: Queue, agent: Seeing, names: list[str]) -> Any:
    held = await queue.hold(Stage.RUN)
    claim = Claim("claimed", held.token, 0, carry=encode(Carried()))
    about = msgspec.structs.replace(spec(), payload={"images": names})
    stage = RunStage(Registry([cast("Handler", agent)]), None, queue.store, ANY, "n0")
    return await asyncio.create_task(stage.perform(Work(held=held, claim=claim, spec=about)))


async def test_run_reads_them_for_whoever_asks_the_policy(queue: Queue, files: PayloadFiles) -> None:
    agent = Seeing()
    names = [str(files.write(TENANT, RED)), str(files.write(TENANT, BLUE))]
    names.append(names[0])
    move = await acted(queue, agent, names)
    assert isinstance(move.item, Advance)
    assert agent.seen == [picture(60, 60), picture(90, 30, "blue"), picture(60, 60)]
    assert agent.seen[0] is agent.seen[2], "one that is there twice is held once"
    assert shown.of_job() == (), "another job's task has none of them"


async def test_an_image_that_is_lost_between_attempts_is_the_nodes_fault_and_tried_again(
    queue: Queue,
    files: PayloadFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "READ_S", 0.0)
    monkeypatch.setattr(images.image, "__kwdefaults__", {"within_s": 0.0})
    name = files.write(TENANT, RED)
    files.path(TENANT, name).unlink()
    agent = Seeing()
    move = await acted(queue, agent, [str(name)])
    assert isinstance(move.error, PayloadUnavailable)
    assert move.error.retryable
    assert agent.seen == []


async def test_a_family_that_shows_none_ends_by_name(queue: Queue, files: PayloadFiles) -> None:
    move = await acted(queue, Seeing(shows=False), [str(files.write(TENANT, RED))])
    assert isinstance(move.error, ImagesUnshown)
    assert not move.error.retryable


def test_the_directory_is_not_walked_for_a_batch_of_text(tmp_path: Path) -> None:
    """A batch without images is handed on as it is."""
    request = batch({"prompt": "2 + 2"}, {"prompt": [{"role": "user", "content": "x"}], "images": []})
    taken = asyncio.run(taking.named(request, {}))
    assert taken.request is request
    assert not taken.images
    assert not any(tmp_path.iterdir())
