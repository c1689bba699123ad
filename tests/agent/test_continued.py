"""A worker that dies within a completion costs none of its tokens that are logged, wherever that was."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from redis.exceptions import ResponseError

from prorl_mq.schema.codec import compress, encode
from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.turns import (
    BEHIND_PARTS,
    PART,
    SCHEMA,
    LoggedCompletion,
    LoggedPart,
    LogReader,
    RecordUnreadable,
    numbered,
    pack_tokens,
    read_record,
    unpack_tokens,
)
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import FakeSampling, Reply
from tests.agent.chat import tooled
from tests.agent.test_journal import MESSAGES, Log, World, bash, told
from tests.unit.workers.inference.conftest import policy_over
from workers.agent import journal
from workers.agent.journal import LogDiffers, Since
from workers.agent.loop import run_agent
from workers.agent.result import AgentResult
from workers.agent.tools import TOOLS
from workers.inference.arrived import Arrived, CallTokens
from workers.inference.clients import InferenceClients
from workers.inference.protocol import Completion
from workers.inference.run_clock import RunClock

pytestmark = pytest.mark.anyio
TEXTS = [f"Größe 漢:\n{bash('one')}", "It is 数."]


class Parts(Log):
    """A log in memory with parts, read again as a worker reads it from Redis."""

    def __init__(self, logged: Sequence[bytes] = ()) -> None:
        reader = LogReader()
        before = [record for each in logged if (record := reader.turn(each)) is not None]
        super().__init__(before)
        self.under_way = None if len(before) % 2 else reader.under_way(len(before) // 2)
        self.logged = list(logged)
        self.notes: list[str] = []
        self.waits: list[bool] = []

    async def append(self, record: bytes, *, wait: bool) -> None:
        self.logged.append(numbered(len(self.records), record))
        await super().append(record, wait=wait)

    async def part(self, record: bytes, *, wait: bool = False) -> None:
        self.logged.append(PART + record)
        self.waits.append(wait)

    async def note(self, text: str) -> None:
        self.notes.append(text)

    def arrived(self) -> int:
        """Tokens of the completion under way that are logged."""
        found = Parts(self.logged).under_way
        return len(unpack_tokens(read_record(found, LoggedCompletion))[0]) if found else 0


class Model:
    """Says the texts of the turns, from wherever in one of them the prompt ends."""

    def __init__(self) -> None:
        self.renderer = tooled()
        self.says = [[*self.renderer.ids(text), self.renderer.end_of_turn] for text in TEXTS]
        self.backend = FakeBackend(reply=self.reply)

    def reply(self, prompt_ids: Sequence[int], params: FakeSampling) -> Reply:
        prompt = list(prompt_ids)
        words = self.says["tool_response" in self.renderer.text(prompt).rpartition("How many?")[2]]
        had = next(length for length in range(len(words), -1, -1) if not length or prompt[-length:] == words[:length])
        logprobs = [-0.25 * (place % 7 + 1) - 0.1 for place in range(len(words))]
        return Reply(ids=words[had:], logprobs=logprobs[had:], finish_reason="stop")

    @property
    def tokens(self) -> int:
        return sum(map(len, self.says))


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    made = Model()
    async with made.backend:
        yield made


@pytest.fixture
async def clients() -> AsyncIterator[InferenceClients]:
    async with InferenceClients(connect_s=2, answer_s=20) as made:
        yield made


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PART_S", 0.002)


async def rollout(
    model: Model, clients: InferenceClients, log: Log, world: World, *, continues: bool = True, seed: int | None = None
) -> AgentResult:
    return await run_agent(
        policy=policy_over(clients, model.backend),
        renderer=model.renderer,
        messages=MESSAGES,
        tools=list(TOOLS.values()),
        sandbox=world,  # type: ignore[arg-type]
        sampling=Sampling(continue_generation=continues, seed=seed),
        sample="task:0",
        deadline=RunClock(60),
        log=log,
    )


async def killed(model: Model, clients: InferenceClients, log: Parts, world: World, place: int) -> None:
    """A worker that dies once so many tokens of the completion under way are logged."""
    held, before = place - log.arrived(), log.arrived()
    model.backend.flow.hold_at = held
    task = asyncio.create_task(rollout(model, clients, log, world))
    async with asyncio.timeout(20):
        while log.arrived() < before + held:
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait({task})
    model.backend.flow.hold_at = None
    await model.backend.wait_running(0)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[Arrived]:
    """What has arrived of completions, each from its start on; no part of one is logged while it is sampled."""
    monkeypatch.setattr(journal, "PART_S", 1000.0)
    there: list[Arrived] = []

    class Noted(Arrived):
        def __init__(self, before: Completion | None = None) -> None:
            super().__init__(before)
            there.append(self)

    monkeypatch.setattr(journal, "Arrived", Noted)
    return there


async def arrived(there: Sequence[Arrived], count: int) -> None:
    async with asyncio.timeout(20):
        while not (there and there[0].call and len(there[0].call.ids) == count):
            await asyncio.sleep(0.001)


def same(result: AgentResult, other: AgentResult) -> bool:
    plain = [told(each.trajectory) for each in (result, other)]
    for each in plain:
        for turn in each["turns"]:
            turn.pop("llm_seconds")
            turn.pop("cached_tokens")
        for segment in each["segments"]:
            segment.pop("spans")  # one for each part
    return bool(plain[0] == plain[1])


async def test_a_completion_continues_from_any_token_of_it(model: Model, clients: InferenceClients) -> None:
    """Within a character of three tokens and within a call, too; no token is sampled twice, no call made twice."""
    whole = await rollout(model, clients, Log(), World(), continues=False)
    assert whole.tool_calls == 1
    for place in range(1, len(model.says[0]) + 1):
        model.backend.flow.sent, world, log = 0, World(), Parts()
        await killed(model, clients, log, world, place)
        later = Parts(log.logged)
        result = await rollout(model, clients, later, world)
        assert same(result, whole), place
        assert model.backend.flow.sent == model.tokens, place
        assert world.ran == ["one"], place


async def test_a_completion_may_be_cut_by_any_number_of_deaths_in_any_turn(
    model: Model, clients: InferenceClients
) -> None:
    whole = await rollout(model, clients, Log(), World(), continues=False)
    world, log = World(), Parts()
    for place in (3, 7, 8, 20):
        await killed(model, clients, log, world, place)
        log = Parts(log.logged)
    model.backend.flow.hold_at = None
    result = await rollout(model, clients, log, world)
    assert same(result, whole)
    assert model.backend.flow.sent == model.tokens
    again = await rollout(model, clients, Parts(log.logged), world)
    assert same(again, whole)
    assert model.backend.flow.sent == model.tokens


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_worker_that_gives_its_job_back_logs_all_that_has_arrived(
    model: Model, clients: InferenceClients, monkeypatch: pytest.MonkeyPatch, *, leaves: bool
) -> None:
    """One that does not, such as one whose job was cancelled, loses what came since the last part: the control."""
    there = noted(monkeypatch)
    whole = await rollout(model, clients, Log(), World(), continues=False)
    world, log = World(), Parts()
    model.backend.flow.hold_at = 9
    task = asyncio.create_task(rollout(model, clients, log, world))
    await arrived(there, 9)
    log.leaves = leaves
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    model.backend.flow.hold_at = None
    assert log.arrived() == 9 * leaves
    assert log.waits == [True] * leaves
    assert same(await rollout(model, clients, Parts(log.logged), world), whole)
    assert model.backend.flow.sent == model.tokens + 9 * (not leaves)


async def test_a_job_whose_last_tokens_cannot_be_logged_is_given_back_all_the_same(
    model: Model, clients: InferenceClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told to stop, and has not failed."""
    there = noted(monkeypatch)
    tried: list[bytes] = []

    class Refused(Parts):
        leaves = True

        async def part(self, record: bytes, *, wait: bool = False) -> None:
            tried.append(record)
            raise ResponseError("no room")

    model.backend.flow.hold_at = 9
    task = asyncio.create_task(rollout(model, clients, Refused(), World()))
    await arrived(there, 9)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    model.backend.flow.hold_at = None
    assert tried


async def test_no_token_is_logged_twice(model: Model, clients: InferenceClients) -> None:
    """The record of the whole has what is behind the parts."""
    world, log = World(), Parts()
    await killed(model, clients, log, world, 9)
    later = Parts(log.logged)
    await rollout(model, clients, later, world)
    parts = [read_record(each[1:], LoggedPart) for each in later.logged if each[:1] == PART]
    logged = [each.about for each in parts if each.turn == 0]
    logged += [read_record(each[5:], LoggedCompletion) for each in later.logged if each[:5] == numbered(0, b"")]
    assert [token for each in logged for token in unpack_tokens(each)[0]] == model.says[0]


async def test_without_the_option_nothing_is_logged_in_parts(model: Model, clients: InferenceClients) -> None:
    """The control: what the worker had when it died is sampled again."""
    world, log = World(), Parts()
    model.backend.token_ms = 1
    await rollout(model, clients, log, world, continues=False)
    assert not any(each[:1] == PART for each in log.logged)
    assert model.backend.flow.sent == 0


@pytest.mark.parametrize(("seed", "streams"), [(3, True), (None, False)])
async def test_why_it_has_no_effect_is_in_the_time_line_once(
    model: Model, clients: InferenceClients, seed: int | None, *, streams: bool
) -> None:
    model.backend.streams, log = streams, Parts()
    await rollout(model, clients, log, World(), seed=seed)
    [note] = log.notes
    assert note.startswith("a turn that is cut starts again: ")
    assert ("its seed" if streams else f"backend {model.backend.address} does not stream tokens") in note


async def test_a_part_of_another_prompt_is_not_continued(model: Model, clients: InferenceClients) -> None:
    log = Parts()
    await killed(model, clients, log, World(), 5)
    later = Parts(log.logged)
    model.renderer = tooled()
    changed = [*MESSAGES[:-1], type(MESSAGES[-1])(role="user", content="How many? Think.")]
    with pytest.raises(LogDiffers, match="prompt of"):
        await run_agent(
            policy=policy_over(clients, model.backend), renderer=model.renderer, messages=changed,
            tools=list(TOOLS.values()), sandbox=None, sampling=Sampling(continue_generation=True), sample="task:0",
            deadline=RunClock(60), log=later,
        )  # fmt: skip


async def test_tokens_that_are_not_used_are_taken_back() -> None:
    """Of a stream that turns out to lack some: a later attempt would continue from them while all is sampled again."""
    log = Parts()
    async with asyncio.timeout(20), journal.Journal(log).arriving(None, Since(0, 0.0, None, lambda: 0.0)) as arrived:
        for told in ([1, 2], [3]):
            arrived.call = CallTokens("b", most=1000)
            arrived.call.add(told, [-0.5] * len(told))
            arrived.call.counted("b", len(told))
            while log.arrived() != len(told):
                await asyncio.sleep(0.001)
            arrived.call = None  # as the policy does with it
            while log.arrived():
                await asyncio.sleep(0.001)
    assert len(log.logged) == 4, "nothing is taken back twice"


def part(turn: int, start: int, *ids: int) -> bytes:
    return PART + compress(encode(LoggedPart(turn, start, _about(ids, 0))))


def _about(ids: Sequence[int], behind: int) -> LoggedCompletion:
    tokens = pack_tokens(ids, [-0.5] * len(ids))
    return LoggedCompletion(
        BEHIND_PARTS if behind else SCHEMA,
        3,
        b"",
        *tokens,
        "stop",
        None,
        "b",
        None,
        (),
        None,
        0.0,
        0.0,
        0.0,
        None,
        behind,
    )


def read(*logged: bytes) -> list[list[int]]:
    reader = LogReader()
    found = [record for each in logged if (record := reader.turn(each)) is not None]
    return [unpack_tokens(read_record(each, LoggedCompletion))[0] for each in found]


def whole(turn: int, behind: int, *ids: int) -> bytes:
    return numbered(2 * turn, compress(encode(_about(ids, behind))))


def test_parts_are_read_with_what_is_behind_them() -> None:
    assert read(part(0, 0, 1, 2), part(0, 2, 3), whole(0, 3, 4, 5)) == [[1, 2, 3, 4, 5]]
    assert read(part(0, 0, 1, 2, 3), whole(0, 2, 4)) == [[1, 2, 4]]
    assert read(part(0, 0, 1, 2), part(0, 0, 7), whole(0, 1, 8)) == [[7, 8]]  # sampled again
    assert read(part(0, 0, 1, 2), whole(0, 0, 9)) == [[9]]
    assert read(part(0, 0, 1), whole(0, 1, 2), whole(1, 0, 3)) == [[1, 2], [3]]


def test_a_completion_that_lacks_a_part_is_an_error_and_not_a_shorter_one() -> None:
    for lost in (part(0, 0, 1, 2), part(0, 2, 3), part(1, 0, 1, 2, 3)):
        with pytest.raises(RecordUnreadable, match="lacks"):
            read(lost, whole(0, 3, 4))


async def test_a_completion_without_its_parts_is_not_read(model: Model, clients: InferenceClients) -> None:
    """Nor by a worker of a release that knows no parts: it reads form 1 alone."""
    with pytest.raises(LogDiffers, match="form 2"):
        await rollout(model, clients, Parts([whole(0, 3, 4)]), World())
