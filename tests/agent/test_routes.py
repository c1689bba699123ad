"""The routed experts of a rollout are those of an undisturbed one, wherever it was cut, forked or compacted."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_mq.schema.codec import decode_trajectory, encode, encode_trajectory
from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import (
    ExpertRoutes,
    ForkedFrom,
    RoutedExperts,
    Segment,
    Trajectory,
    TrajectoryError,
    check,
)
from prorl_mq.service.fork_records import of_log, of_trajectory
from prorl_mq.testing.experts import FakeExperts
from tests.agent.test_journal import MESSAGES, RECORDS, TEXTS, Cut, Log, Sampler, World, bash, call
from tests.external import test_forest as forest
from workers.agent import loop
from workers.agent.compaction import History
from workers.agent.hermes import Message
from workers.agent.loop import run_agent
from workers.agent.tools import TOOLS
from workers.external.recording import Recording
from workers.inference import routes
from workers.inference.protocol import Completion
from workers.inference.routes import RoutesAsked
from workers.inference.run_clock import RunClock

pytestmark = pytest.mark.anyio
OF = RoutedExperts(layers=2, top_k=2, experts=300)
OTHERS = [bash("five"), call("finish", '{"message": "2"}')]


def routed(experts: FakeExperts, ids: Sequence[int], asked: RoutesAsked) -> ExpertRoutes:
    data = b"".join(each.to_bytes(2, "little") for each in experts.numbers(ids, asked.start))
    experts.asked.append((asked.start, len(ids) - 1))
    return ExpertRoutes(of=asked.of, start=asked.start, data=data)


class Expert(Sampler):
    """Samples the text of its turn with the routes that it is asked for; `flavour` is of its weights."""

    def __init__(self, texts: Sequence[str], turn: int = 0, flavour: int = 0) -> None:
        super().__init__(texts)
        self.turn = turn
        self.experts = FakeExperts(of=OF, flavour=flavour, asked=[])
        self.again = 0  # tokens that were sampled for the routes in front of them

    async def generate(
        self, prompt_ids: Sequence[int], *, routes: RoutesAsked | None = None, **sampling: Any
    ) -> Completion:
        if sampling["temperature"] == 0.0:
            self.again += 1
            found = Completion(ids=[1], logprobs=[0.0], finish_reason="length")
        else:
            found = await super().generate(prompt_ids, **sampling)
        if routes is None:
            return found
        return msgspec.structs.replace(found, routes=routed(self.experts, [*prompt_ids, *found.ids], routes))


class Filed(Log):
    """A log whose routes are in files, which may be gone."""

    def __init__(self, *about: Any, files: dict[str, bytes] | None = None, **more: Any) -> None:
        super().__init__(*about, **more)
        self.by_name = {} if files is None else files

    async def keep_file(self, data: bytes) -> str:
        name = f"file:{len(self.by_name)}"
        self.by_name[name] = data
        return name

    async def kept_file(self, name: str) -> bytes | None:
        return self.by_name.get(name)


async def compact(history: History) -> list[Message] | None:
    """Begins again in front of the third turn."""
    return [Message(role="user", content="Continue from here.")] if history.turns == 2 else None


async def rollout(log: Log | None, world: World, policy: Expert, **more: Any) -> Trajectory:
    result = await run_agent(
        policy=policy,
        renderer=policy.renderer,
        messages=MESSAGES,
        tools=list(TOOLS.values()),
        sandbox=world,  # type: ignore[arg-type]
        sampling=Sampling(seed=1, routed_experts=more.pop("of", OF)),
        sample="task:0",
        deadline=RunClock(60),
        log=log,
        **more,
    )
    check(result.trajectory)
    return result.trajectory


def expected(segment: Segment, flavour: int = 0) -> bytes:
    ids = [*segment.prompt_ids, *segment.response_ids]
    return b"".join(each.to_bytes(2, "little") for each in FakeExperts(of=OF, flavour=flavour).numbers(ids))


def whole(trajectory: Trajectory) -> None:
    """Each segment has the routes of all its tokens but the last, as one forward pass over them would have them."""
    for segment in trajectory.segments:
        assert segment.routes is not None
        assert segment.routes.rows == len(segment.prompt_ids) + len(segment.response_ids) - 1
        assert segment.routes.data == expected(segment)
    assert encode(decode_trajectory(encode_trajectory(trajectory))) == encode(trajectory)


@pytest.mark.parametrize("more", [{}, {"compact": compact}])
async def test_each_turn_asks_for_the_rows_behind_those_of_the_turn_before(more: dict[str, Any]) -> None:
    policy = Expert(TEXTS)
    trajectory = await rollout(Filed(), World(), policy, **more)
    whole(trajectory)
    ends = [0, *(end for _, end in policy.experts.asked)]
    if more:
        ends[2] = 0  # a new prompt begins there
    assert [start for start, _ in policy.experts.asked] == ends[:-1]
    assert policy.again == 0


async def test_who_asks_for_none_has_none_and_pays_nothing() -> None:
    policy, log = Expert(TEXTS), Filed()
    trajectory = await rollout(log, World(), policy, of=None)
    assert all(segment.routes is None for segment in trajectory.segments)
    assert (policy.experts.asked, log.by_name, policy.again) == ([], {}, 0)
    asked = await rollout(Filed(), World(), Expert(TEXTS))
    bare = [msgspec.structs.replace(segment, routes=None) for segment in asked.segments]
    assert [encode(each) for each in bare] == [encode(each) for each in trajectory.segments]


class Unread(Sequence[int]):
    """A long context, of which a copy takes half a millisecond."""

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, place: Any) -> Any:
        raise AssertionError("the context was read")


async def test_a_turn_without_routes_copies_no_context() -> None:
    done = Completion(ids=[7], logprobs=[-0.5], finish_reason="stop", backend="b")
    assert await routes.whole(Expert([]), Unread(), done, {}) is done
    with pytest.raises(AssertionError, match="the context was read"):  # which is one that tells
        await routes.whole(Expert([]), Unread(), done, {"routes": RoutesAsked(OF)})


@pytest.mark.parametrize(("cut_at", "compacts"), [*((at, False) for at in range(1, RECORDS)), (4, True), (7, True)])
async def test_a_rollout_that_was_cut_has_the_routes_that_its_log_kept(cut_at: int, compacts: bool) -> None:
    """The weights are others after the death: what was sampled before keeps the routes it was sampled with."""
    more: dict[str, Any] = {"compact": compact} if compacts else {}
    first, world = Filed(cut_at=cut_at), World()
    before = Expert(TEXTS)
    with pytest.raises(Cut):
        await rollout(first, world, before, **more)
    undisturbed = await rollout(Filed(), World(), Expert(TEXTS), **more)
    turn = (cut_at + 1) // 2
    after = Expert(TEXTS[turn:], turn, flavour=1)
    found = await rollout(Filed(first.records, files=first.by_name), world, after, **more)
    assert after.again == 0
    ends = [end for _, end in before.experts.asked][:turn]
    at = len(ends)
    for segment, same in zip(found.segments, undisturbed.segments, strict=True):
        assert segment.routes is not None
        assert same.routes is not None
        new = expected(segment, 1)
        last = max((end for end in ends[:at] if end <= segment.routes.rows), default=0)
        kept = last if not compacts else 0
        assert segment.routes.data[: kept * 8] == same.routes.data[: kept * 8]
        if not compacts:
            assert segment.routes.data[kept * 8 :] == new[kept * 8 :]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, RECORDS - 1), max_size=3), st.booleans(), st.booleans())
def test_whatever_kills_it_and_whatever_files_are_gone_the_routes_are_the_undisturbed_ones(
    cuts: list[int], compacts: bool, gone: bool
) -> None:
    """Where the weights stay, and a file is collected, its routes are asked for again: the same ones come."""
    more: dict[str, Any] = {"compact": compact} if compacts else {}

    async def play() -> tuple[Trajectory, Trajectory]:
        undisturbed = await rollout(Filed(), World(), Expert(TEXTS), **more)
        records: Sequence[bytes] = ()
        files: dict[str, bytes] = {}
        world = World()
        for cut_at in sorted(set(cuts)):
            log, turn = Filed(records, cut_at, files=files), (len(records) + 1) // 2
            with pytest.raises(Cut):
                await rollout(log, world, Expert(TEXTS[turn:], turn), **more)
            records = log.records
            if gone:
                files.clear()
        turn = (len(records) + 1) // 2
        return undisturbed, await rollout(Filed(records, files=files), world, Expert(TEXTS[turn:], turn), **more)

    undisturbed, found = asyncio.run(play())
    whole(undisturbed)
    whole(found)
    assert [each.routes for each in found.segments] == [each.routes for each in undisturbed.segments]


async def test_without_asking_again_a_lost_file_would_leave_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the guard."""
    first = Filed(cut_at=RECORDS - 1)
    world = World()
    with pytest.raises(Cut):
        await rollout(first, world, Expert(TEXTS), compact=compact)

    async def as_it_is(_policy: Any, _context: Any, completion: Completion, _wanted: Any) -> Completion:
        return completion

    monkeypatch.setattr(loop, "whole", as_it_is)
    turn = len(TEXTS) - 1
    with pytest.raises((TrajectoryError, AssertionError)):
        whole(await rollout(Filed(first.records), world, Expert(TEXTS[turn:], turn), compact=compact))


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("turn", [0, 1, 4])
async def test_a_fork_has_the_routes_of_what_it_inherits(turn: int, compacts: bool, ended: bool) -> None:
    """From the log of a rollout with its files, or from a trajectory that has ended: then they are asked for again."""
    more: dict[str, Any] = {"compact": compact} if compacts else {}
    log = Filed()
    parent = await rollout(log, World(), Expert(TEXTS), **more)
    base = of_trajectory(parent, turn) if ended else of_log(log.records[: 2 * turn + 2])
    child = Filed(base, files=log.by_name, rebuilds=True, inherited=turn + 1)
    child.world = World()
    policy = Expert(OTHERS, turn + 1)
    found = await rollout_of(child, policy, turn, more)
    whole(found)
    assert policy.again == (turn + 1 if ended else 0)


async def rollout_of(child: Filed, policy: Expert, turn: int, more: dict[str, Any]) -> Trajectory:
    assert child.world is not None
    result = await run_agent(
        policy=policy,
        renderer=policy.renderer,
        messages=MESSAGES,
        tools=list(TOOLS.values()),
        sandbox=child.world,  # type: ignore[arg-type]
        sampling=Sampling(seed=1, routed_experts=OF),
        sample="task:0",
        deadline=RunClock(60),
        log=child,
        **more,
    )
    found = msgspec.structs.replace(result.trajectory, forked_from=ForkedFrom(job_id="run:group:0", turn=turn))
    check(found)
    return found


class Heard(forest.Policy):
    """The policy of a forest, with routes."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = FakeExperts(of=OF, asked=[])

    async def generate(self, prompt_ids: Sequence[int], **about: Any) -> Any:
        asked: RoutesAsked = about.pop("routes")
        found = await super().generate(prompt_ids, **about)
        return msgspec.structs.replace(found, routes=routed(self.experts, [*prompt_ids, *found.ids], asked))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(forest.OPS), st.integers(0, 50)), max_size=12))
def test_in_any_forest_each_row_has_the_routes_of_its_own_tokens(ops: list[tuple[str, int]]) -> None:
    async def play() -> Trajectory:
        talk, policy = forest.Talk(), Heard()
        talk.policy = policy
        sampling = Sampling(max_turns=500, max_tokens=1 << 20, routed_experts=OF)
        talk.recording = Recording(policy, forest.RENDERER, sampling, "s")
        await talk.act("new", 0)
        for op, pick in ops:
            await talk.act(op, pick)
        return await talk.trajectory()

    trajectory = asyncio.run(play())
    check(trajectory)
    whole(trajectory)


async def test_a_harness_that_continues_is_asked_for_new_rows_alone() -> None:
    talk, policy = forest.Talk(), Heard()
    talk.policy = policy
    talk.recording = Recording(policy, forest.RENDERER, Sampling(routed_experts=OF), "s")
    await talk.act("new", 0)
    await talk.act("say", 1)
    (_, end), (start, _) = policy.experts.asked
    assert start == end > 0
    whole(await talk.trajectory())


async def test_wrong_rows_are_no_trajectory() -> None:
    """Rows that are not of all tokens but the last are refused before anything is stored."""
    trajectory = await rollout(Filed(), World(), Expert(TEXTS))
    [segment] = trajectory.segments
    assert segment.routes is not None
    for wrong in (segment.routes.until(3), segment.routes.since(1)):
        spoilt = msgspec.structs.replace(segment, routes=wrong)
        with pytest.raises(TrajectoryError, match=r"all .* tokens but the last one have some"):
            check(msgspec.structs.replace(trajectory, segments=[spoilt]))
