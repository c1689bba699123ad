"""A forked rollout begins with another one's turns, samples the rest itself, and trains each token once."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from prorl_mq.cli.samples.replay import turns_of
from prorl_mq.converters import table
from prorl_mq.converters.prorl import messages
from prorl_mq.converters.rollout import completions
from prorl_mq.converters.rollout import rollout as trainable
from prorl_mq.converters.table import Sample
from prorl_mq.schema.codec import decode_trajectory, encode_trajectory
from prorl_mq.schema.messages import Outcome, SampleRecord, Sampling
from prorl_mq.schema.trajectory import INHERITED, ForkedFrom, Trajectory, TrajectoryError, check
from prorl_mq.schema.turns import LoggedCompletion, TurnResults, read_record
from prorl_mq.service import turn_pages
from prorl_mq.service.fork_records import CannotFork, of_log, of_trajectory, sampled_tokens
from tests.agent.chat import tooled
from tests.agent.test_journal import MESSAGES, TEXTS, Log, Sampler, World, bash, call, rollout
from workers.agent.compaction import History
from workers.agent.hermes import Message
from workers.agent.journal import LogDiffers
from workers.agent.loop import run_agent
from workers.agent.tools import TOOLS
from workers.inference.run_clock import RunClock
from workers.rehearsal.comparing import first_difference
from workers.rehearsal.comparing import of_log as of_log_turn
from workers.rehearsal.policy import RecordedPolicy

pytestmark = pytest.mark.anyio
OTHERS = [bash("five"), call("finish", '{"message": "2"}')]
LAST = len(TEXTS) - 2  # the last turn that something follows


async def compact(history: History) -> list[Message] | None:
    """Begins again in front of the third turn."""
    return [Message(role="user", content="Continue from here.")] if history.turns == 2 else None


MORE: list[dict[str, Any]] = [{}, {"compact": compact}]


async def child(base: Sequence[bytes], turn: int, **more: Any) -> tuple[Log, World, Trajectory]:
    """A rollout in a new sandbox that begins with turns 0 to `turn`, and says `OTHERS` behind them."""
    log = Log(base, rebuilds=True, inherited=turn + 1)
    log.world = world = World()
    policy = Sampler(OTHERS)
    policy.turn = turn + 1
    result = await rollout(log, world, policy, **more)
    assert policy.sampled == [turn + 1, turn + 2]
    return (
        log,
        world,
        msgspec.structs.replace(result.trajectory, forked_from=ForkedFrom(job_id="run:group:0", turn=turn)),
    )


def ids(trajectory: Trajectory) -> list[list[int]]:
    return [[*segment.prompt_ids, *segment.response_ids] for segment in trajectory.segments]


def trained(trajectory: Trajectory) -> int:
    return sum(sum(segment.loss_mask) for segment in trajectory.segments)


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("turn", [0, 1, 4, LAST])
async def test_a_fork_has_the_turns_of_its_parent_with_mask_0_and_its_own_behind_them(
    turn: int, more: dict[str, Any]
) -> None:
    log = Log()
    parent = (await rollout(log, world := World(), Sampler(TEXTS), **more)).trajectory
    base = of_log(log.records[: 2 * turn + 2])
    _, again, found = await child(base, turn, **more)
    check(found)
    assert [each.left_out for each in found.turns] == [INHERITED] * (turn + 1) + ["", ""]
    kept = len(found.turns) - 2
    assert [each.text for each in found.turns[:kept]] == [each.text for each in parent.turns[:kept]]
    assert [each.tool_calls for each in found.turns[:kept]] == [each.tool_calls for each in parent.turns[:kept]]
    shared = sampled_tokens(base)
    first = sum(sum(segment.loss_mask) for segment in parent.segments) - sum(
        each.completion_tokens for each in parent.turns[turn + 1 :]
    )
    assert shared == first, "what its parent trains of these turns"
    assert trained(found) == sum(each.completion_tokens for each in found.turns[kept:])
    own = {each.segment for each in found.turns[kept:]}
    for number, (mine, theirs) in enumerate(zip(ids(found), ids(parent), strict=False)):
        assert number in own or mine == theirs, "a segment that its parent has ended is the same"
    assert again.ran[: len(again.ran) - 1] == world.ran[: len(again.ran) - 1], "the same calls were made before"
    sample = SampleRecord(job_id="run:fork:0", index=0, outcome=Outcome.COMPLETED, reward=1.0)
    assert all(any(row.loss_mask) for row in trainable("task", sample, found).rows)


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("turn", [0, 1, 4, LAST])
async def test_of_a_finished_parent_the_fork_is_the_same(turn: int, more: dict[str, Any]) -> None:
    log = Log()
    parent = (await rollout(log, World(), Sampler(TEXTS), **more)).trajectory
    from_log, from_trajectory = of_log(log.records[: 2 * turn + 2]), of_trajectory(parent, turn)
    assert [_untimed(each) for each in from_log] == [_untimed(each) for each in from_trajectory]
    _, _, one = await child(from_log, turn, **more)
    _, _, other = await child(from_trajectory, turn, **more)
    assert ids(one) == ids(other)


def _untimed(record: bytes) -> object:
    """A record without the times of a whole rollout, and who sampled it."""
    try:
        made = read_record(record, LoggedCompletion)
        return msgspec.structs.replace(made, used_s=0.0, backend="", version=None)
    except Exception:
        return msgspec.structs.replace(read_record(record, TurnResults), used_s=0.0, elapsed_s=0.0)


async def test_a_fork_is_forked_again() -> None:
    log = Log()
    await rollout(log, World(), Sampler(TEXTS))
    first, _, one = await child(of_log(log.records[:4]), 1)
    grandchild = of_log(first.records[:6])
    _, _, two = await child(grandchild, 2)
    check(two)
    assert ids(two)[0][: len(ids(one)[0]) // 2] == ids(one)[0][: len(ids(one)[0]) // 2]
    assert [each.left_out for each in two.turns] == [INHERITED] * 3 + ["", ""]


async def test_the_trajectory_of_a_fork_has_the_same_turns_as_its_log() -> None:
    log = Log()
    await rollout(log, World(), Sampler(TEXTS))
    made, _, found = await child(of_log(log.records[:4]), 1)
    first = made.records[4]
    shown = turn_pages.logged(first, made.records[: len(made.records) - 1], after=0, limit=10)
    ended = turn_pages.ended(found, after=0, limit=3)
    assert (shown.rollout, list(shown.turns)) == (ended.rollout, list(ended.turns))
    early = turn_pages.logged(None, made.records[:4], after=0, limit=10)
    assert (early.rollout, list(early.turns)) == ("", list(ended.turns[:2])), "before it has sampled anything"


async def test_a_prefix_that_claims_to_be_trained_is_refused() -> None:
    """The control: what a fork would look like whose prefix kept its mask."""
    log = Log()
    parent = (await rollout(log, World(), Sampler(TEXTS))).trajectory
    _, _, found = await child(of_log(log.records[:4]), 1)
    for wrong in (
        msgspec.structs.replace(found, forked_from=None),
        msgspec.structs.replace(found, forked_from=ForkedFrom(job_id="run:group:0", turn=0)),
        msgspec.structs.replace(parent, forked_from=ForkedFrom(job_id="run:group:0", turn=1)),
    ):
        with pytest.raises(TrajectoryError, match=f"must be left out as {INHERITED}"):
            check(wrong)


async def test_calls_that_answer_otherwise_in_the_new_sandbox_end_the_attempt() -> None:
    log = Log()
    await rollout(log, World(), Sampler(TEXTS))
    other = World()
    other.ran = ["something else"]
    with pytest.raises(LogDiffers, match="answers otherwise"):
        await rollout(Log(of_log(log.records[:4]), rebuilds=True, inherited=2), other, Sampler(OTHERS))


async def test_what_cannot_be_forked_is_refused_by_name() -> None:
    parent = (await rollout(Log(), World(), Sampler(TEXTS))).trajectory
    with pytest.raises(CannotFork, match="nothing follows the last one: fork it at turn 0 to 5"):
        of_trajectory(parent, LAST + 1)
    harness = msgspec.structs.replace(parent.turns[0], session="main")
    with pytest.raises(CannotFork, match="third-party"):
        of_trajectory(msgspec.structs.replace(parent, turns=[harness, *parent.turns[1:]]), 1)
    one = (await rollout(Log(), World(), Sampler(TEXTS[-1:]))).trajectory
    with pytest.raises(CannotFork, match="it cannot be forked"):
        of_trajectory(one, 0)


async def test_exported_rows_name_the_parent_and_have_the_whole_conversation() -> None:
    log = Log()
    await rollout(log, World(), Sampler(TEXTS))
    _, _, found = await child(of_log(log.records[:4]), 1)
    sample = Sample(
        run_id="run", batch_id="fork", group_id="fork", job_id="run:fork:0", index=0, task_id="t", data_source="d",
        verdict="accepted", outcome=Outcome.COMPLETED, reward=1.0, trajectory=found,
    )  # fmt: skip
    [row] = table.rows(sample)
    assert (row.forked_from, row.forked_turn, row.share) == ("run:group:0", 1, 1.0)
    turns = [["assistant", "tool"], ["assistant", "tool", "tool"], ["assistant", "tool"], ["assistant"]]
    assert [each.role for each in row.messages] == ["system", "user", *(role for turn in turns for role in turn)]
    record = SampleRecord(job_id="run:fork:0", index=0, outcome=Outcome.COMPLETED, reward=1.0)
    assert len(completions(trainable("t", record, found))) == 2, "its own"
    flat = [token for each in messages(found) for token in each["token_ids"]]
    assert flat == ids(found)[0]
    assert decode_trajectory(encode_trajectory(found)) == found


async def test_a_fork_is_replayed_from_its_trajectory() -> None:
    """With what it was given and what it has itself."""
    log = Log()
    await rollout(log, World(), Sampler(TEXTS))
    _, world, found = await child(of_log(log.records[:4]), 1)
    policy = RecordedPolicy(turns_of(found))
    sandbox: Any = World()
    again = await run_agent(
        policy=policy, renderer=tooled(), messages=MESSAGES, tools=list(TOOLS.values()), sandbox=sandbox,
        sampling=Sampling(), sample="again", deadline=RunClock(60),
        log=Log(),
    )  # fmt: skip
    assert (ids(again.trajectory), sandbox.ran) == (ids(found), world.ran)
    assert first_difference([of_log_turn(each) for each in turns_of(found)], again.trajectory, ()) is None
