"""Nothing that has no reward reaches a trainer as if it had one."""

import msgspec
import pytest

from prorl_mq.converters import verl
from prorl_mq.converters.rollout import TRAINABLE, rollout, rollouts, versions
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.messages import GroupRecord, Outcome, Verdict
from prorl_mq.schema.trajectory import Segment, Span
from tests.converters.made import sample, truncated, with_tools


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - TRAINABLE))
def test_infrastructure_failures_are_refused(outcome: Outcome) -> None:
    with pytest.raises(NotTrainable, match=f"ended {outcome} without a reward: leave it out"):
        rollout("task", sample(outcome=outcome, reward=None), with_tools().trajectory)


def test_a_sample_without_reward_or_tokens_is_refused() -> None:
    with pytest.raises(NotTrainable, match="without a reward"):
        rollout("task", sample(reward=None), with_tools().trajectory)
    with pytest.raises(NotTrainable, match="sampled no token"):
        rollout("task", sample(), None)


def test_a_group_gives_its_counted_samples_in_order() -> None:
    group = GroupRecord(
        run_id="run",
        batch_id="b",
        group_id="g",
        task_id="task",
        data_source="d",
        verdict=Verdict.ACCEPTED,
        samples=[
            sample(job_id="late", index=1),
            sample(job_id="lost", index=2, outcome=Outcome.INFRA_ERROR, reward=None, replaced=True),
            sample(job_id="early", index=0, outcome=Outcome.AGENT_ERROR, reward=0.0),
        ],
        n=2,
    )
    tokens = {"late": with_tools().trajectory, "early": truncated().trajectory, "lost": with_tools().trajectory}
    found = rollouts(group, tokens)
    assert [(each.sample.job_id, each.reward, each.task_id) for each in found] == [
        ("early", 0.0, "task"),
        ("late", 0.75, "task"),
    ]


def test_versions_are_told_only_where_every_backend_told_one() -> None:
    def segment(*told: tuple[str, str] | None) -> Segment:
        spans = [Span(start=at, end=at + 1, backend="b", version=each) for at, each in enumerate(told)]
        return Segment(prompt_ids=[], response_ids=[], loss_mask=[], logprobs=[], spans=spans)

    assert versions([segment(("9", "10"), ("10", "11"))]) == (9, 11)
    assert versions([segment(("9", "9"), None)]) is None
    assert versions([segment(("default", "default"))]) is None
    assert versions([segment()]) is None


def test_a_trajectory_without_turns_cannot_be_told_apart_into_messages() -> None:
    whole = with_tools()
    bare = msgspec.structs.replace(whole, trajectory=msgspec.structs.replace(whole.trajectory, turns=[]))
    with pytest.raises(NotTrainable, match="segment 0 of the trajectory has no turns"):
        verl.outputs(bare)
