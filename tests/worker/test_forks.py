"""A job that was forked: it begins with another one's turns, wherever it continues and however often."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import EntryId, JobRef, Token, batch_ref, group_ref
from prorl_mq.schema.items import Claim, Held, NewBatch, NewFork, NewGroup
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.schema.trajectory import ForkedFrom
from prorl_mq.schema.turns import (
    SCHEMA,
    Archive,
    Checkpoint,
    Inherited,
    LoggedCompletion,
    World,
    read_record,
    turn_record,
    unpack_tokens,
)
from prorl_mq.store.payloads.checkpoints import CheckpointArchives
from prorl_mq.store.server.connection import RedisSettings
from sandbox.errors import SandboxUnavailable
from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.isolators.layers.copying import Copies
from sandbox.lifetime.sweep import sweep
from sandbox.protocol import SandboxSpec
from tests.agent.test_continued import part, whole
from tests.support.queue import POOL, RUN, Queue, spec
from tests.worker.test_turn_logs import DIGEST, NODE, Place, Turns
from workers.agent.journal import LogDiffers
from workers.handler import Ran, Run
from workers.inference.protocol import Completion
from workers.inference.run_clock import RunClock
from workers.stages.contexts import ForkUnread, RunContext
from workers.stages.job_log import JobLog
from workers.stages.work import Work

pytestmark = pytest.mark.anyio
GIVEN = [b"record 0", b"record 1"]
PARENT, TREE = JobRef("acme:r:g:0"), group_ref(RUN, "tree")
FILES = encode(([("/steps", b"0")], []))


class Forgets(Turns):
    """Its second attempt differs from its log."""

    async def run(self, context: Run) -> Ran:
        if len(self.found) == 1:
            assert context.log is not None
            self.found.append(list(context.log.before))
            raise LogDiffers("it differs")
        return await super().run(context)


class Forked(Place):
    """A node with a child in RUN, and the sandbox that INIT has made for it."""

    point: Checkpoint | None = None
    saved = b""
    sandbox = ""

    async def prepare(self) -> None:
        await self.queue.submit()
        told = spec("tree", fork=ForkedFrom(job_id="r:g:0", turn=0))
        group = NewGroup(TREE, "d", 1, told.limits.total_ms, encode(told), b"", told.data_source)
        turns = encode(Inherited(SCHEMA, "r:g:0", 0, GIVEN, self.point, self.sandbox))
        begins = NewFork(turns, PARENT, self.saved, sealed_of=group_ref(RUN, "g"))
        assert await self.queue.store.fork(NewBatch(RUN, batch_ref(RUN, "tree"), "d", 1, 1), group, begins) == "forked"
        assert await self.queue.store.admit(RUN, [await self.queue.wanted(TREE)]) == [1]
        self.ref = JobRef(f"{TREE}:0")
        await self.init()

    async def own(self) -> list[tuple[int, bytes | None]]:
        """Its own records of turns, with their numbers."""
        return [turn_record(each) for each in await self.log() if each[:1] == b"t"]


@pytest.fixture
async def child(queue: Queue, settings: RedisSettings) -> Forked:
    found = Forked(queue, settings)
    await found.prepare()
    return found


async def test_a_child_continues_behind_the_turns_that_it_was_given(child: Forked) -> None:
    child.family.go.set()
    async with child.worker("w1"):
        await child.at(Stage.EVAL)
    assert (child.family.found, child.family.rebuilt, child.family.restored) == ([GIVEN], [True], [-1])


async def test_its_next_attempt_has_its_own_turns_too(child: Forked) -> None:
    async with child.worker("w1"):
        await child.waiting()
    assert await child.own() == [(2, b"record 2")]
    first = (await child.log())[:2]
    [box] = child.provider.alive
    assert first == [b"w" + encode(World(None, box, whole)) for whole in (False, True)], "it is a new sandbox to it"
    child.family.go.set()
    async with child.worker("w2"):
        await child.at(Stage.EVAL)
    assert child.family.found == [GIVEN, [*GIVEN, b"record 2"]]
    assert child.family.rebuilt == [True, False], "the second attempt is in the sandbox of the first"


async def test_a_child_that_forgets_its_log_begins_at_the_fork_again(queue: Queue, settings: RedisSettings) -> None:
    child = Forked(queue, settings)
    child.family = Forgets()
    await child.prepare()
    async with child.worker("w1"):
        await child.waiting()
    async with child.worker("w2"):
        await child.at(Stage.INIT)
    assert await child.log() == []
    await child.init()
    child.family.go.set()
    async with child.worker("w3"):
        await child.at(Stage.EVAL)
    assert child.family.found == [GIVEN, [*GIVEN, b"record 2"], GIVEN]


async def test_it_begins_with_the_checkpoint_that_it_was_given(queue: Queue, settings: RedisSettings) -> None:
    child = Forked(queue, settings)
    child.point, child.saved = Checkpoint(0, DIGEST), encode(Archive(DIGEST, FILES))
    await child.prepare()
    async with child.worker("w1"):
        await child.waiting()
    [box] = child.provider.alive.values()
    assert (child.family.restored, await box.read_file("/steps")) == ([0], b"0")
    child.provider.alive.clear()  # its sandbox is lost: the next one begins with it too
    async with child.worker("w2"):
        await child.at(Stage.INIT)
    await child.init()
    child.family.go.set()
    async with child.worker("w3"):
        await child.at(Stage.EVAL)
    assert child.family.restored == [0, 0]


async def test_turns_that_are_gone_end_it_and_say_so(child: Forked) -> None:
    await child.queue.command("UNLINK", child.queue.keys.fork(TREE))
    async with child.worker("w1"):

        async def over() -> bool:
            return (await child.queue.snapshot(child.ref)).outcome == Outcome.INFRA_ERROR

        async with asyncio.timeout(20):
            while not await over():
                await asyncio.sleep(0.01)
    group = await child.queue.command("HGETALL", child.queue.keys.group(TREE))
    assert b"the turns of r:g:0 that it begins with are gone" in b"".join(group)


async def test_a_child_that_was_killed_within_a_completion_has_what_had_arrived(queue: Queue) -> None:
    """Its parts have the numbers of turns behind those that it was given; one of another turn is none of it."""
    held = Held(PARENT, Token("1-0.1"), EntryId("1-1"), Stage.RUN, None, POOL)
    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
    base = Inherited(SCHEMA, "r:g:0", 0, GIVEN, None)
    world = b"w" + encode(World(None, "s", whole=True))

    def log(*parts: bytes) -> JobLog:
        return JobLog(work, lambda _: asyncio.Future(), [world, *parts], CheckpointArchives(queue.store), base)

    cut = log(part(1, 0, 7, 8), part(1, 2, 9)).under_way
    assert cut is not None
    assert unpack_tokens(read_record(cut, LoggedCompletion))[0] == [7, 8, 9]
    assert log(part(0, 0, 7, 8)).under_way is None
    ended = log(part(1, 0, 7, 8), whole(1, 2, 9))
    assert ended.under_way is None
    assert unpack_tokens(read_record(ended.before[2], LoggedCompletion))[0] == [7, 8, 9]


class Says:
    """A policy."""

    async def generate(self, prompt_ids: Any, **_: Any) -> Completion:
        return Completion(ids=[len(prompt_ids)], logprobs=[0.0], finish_reason="stop", backend="b")


@pytest.mark.parametrize(("forked", "reads"), [(True, False), (True, True), (False, False)])
async def test_a_family_that_does_not_read_the_turns_samples_nothing(
    queue: Queue, *, forked: bool, reads: bool
) -> None:
    """The controls: one that reads them, and a job that is no fork."""
    held = Held(PARENT, Token("1-0.1"), EntryId("1-1"), Stage.RUN, None, POOL)
    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
    base = Inherited(SCHEMA, "r:g:0", 0, GIVEN, None) if forked else None
    log = JobLog(work, lambda _: asyncio.get_running_loop().create_future(), [], CheckpointArchives(queue.store), base)
    if reads:
        log.open()
    context = RunContext(work, None, None, lambda *_: Says(), RunClock(60), log)

    async def ask() -> Completion:
        return await context.policy.generate([1], max_tokens=1, temperature=1.0)

    if forked and not reads:
        with pytest.raises(ForkUnread, match="cannot be forked") as refused:
            await ask()
        assert not refused.value.retryable
    else:
        assert (await ask()).ids == [1]


class Reads(Turns):
    """Looks at what its sandbox holds."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[str] = []

    async def run(self, context: Run) -> Ran:
        assert context.sandbox is not None
        self.held.append((await context.sandbox.run(["cat", "/workspace/told"])).stdout.decode())
        return await super().run(context)


@pytest.fixture
async def real(queue: Queue, settings: RedisSettings, tmp_path: Path) -> AsyncIterator[Forked]:
    """A child whose sandbox and whose parent's are real ones."""
    child = Forked(queue, settings)
    try:
        provider = BubblewrapProvider(NODE, tmp_path)
    except SandboxUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    child.provider, child.copies, child.family = cast("Any", provider), Copies(), Reads()
    child.family.go.set()
    yield child
    await sweep(tmp_path, lambda owner: False)
    await child.copies.aclose()
    await provider.aclose()


@pytest.mark.parametrize(
    ("turn", "held", "restored"), [(0, "told\n", 0), (1, "", -1)], ids=["as it was", "one turn further"]
)
async def test_it_begins_in_a_copy_of_its_parents_sandbox(real: Forked, turn: int, held: str, restored: int) -> None:
    """If that one is still as it was behind the turn; else in what INIT has made, and its calls are made again."""
    parent = await real.provider.create(SandboxSpec(owner="parent"))
    await parent.mark()
    await parent.named(f"{turn}.0").bash("echo told >/workspace/told")
    real.sandbox = parent.handle.sandbox_id
    await real.prepare()
    async with real.worker("w1"):
        await real.at(Stage.EVAL)
    family = cast("Reads", real.family)
    assert (family.held, family.restored, family.rebuilt) == ([held], [restored], [True])
    assert (await parent.bash("cat /workspace/told")).output == "told\n"


async def test_what_a_copy_was_begun_with_is_not_tried_again(real: Forked) -> None:
    """Its second attempt is in the sandbox of the first, or begins with what outlives a sandbox."""
    parent = await real.provider.create(SandboxSpec(owner="parent"))
    await parent.mark()
    await parent.bash("echo told >/workspace/told")
    real.sandbox = parent.handle.sandbox_id
    real.family.go.clear()
    await real.prepare()
    async with real.worker("w1"):
        await real.waiting()
    await parent.close()
    real.family.go.set()
    async with real.worker("w2"):
        await real.at(Stage.EVAL)
    family = cast("Reads", real.family)
    assert (family.held, family.restored, family.rebuilt) == (["told\n"] * 2, [0, -1], [True, False])
