"""Nothing that has no reward reaches a trainer as if it had one."""

import msgspec
import pytest
from msgspec.structs import replace

from prorl_mq.archive.table import sample_of
from prorl_mq.converters import prorl, table, verl
from prorl_mq.converters.rollout import TRAINABLE, completions, rollout, rollouts, versions
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.messages import GroupRecord, Outcome, SampleRecord, Verdict
from prorl_mq.schema.trajectory import Segment, Span, Trajectory
from tests.converters.made import compacted, sample, truncated, two_models, with_tools
from workers.stages.staleness import first_version, versions_of


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - TRAINABLE))
def test_infrastructure_failures_are_refused(outcome: Outcome) -> None:
    with pytest.raises(NotTrainable, match=f"ended {outcome} without a reward: leave it out"):
        rollout("task", sample(outcome=outcome, reward=None), with_tools().trajectory)


def accepted(*samples: SampleRecord, n: int) -> GroupRecord:
    verdict = Verdict.ACCEPTED
    return GroupRecord(
        run_id="run", batch_id="b", group_id="g", task_id="task", data_source="d", verdict=verdict, samples=samples, n=n
    )


def test_a_sample_without_reward_or_tokens_is_refused() -> None:
    with pytest.raises(NotTrainable, match="without a reward"):
        rollout("task", sample(reward=None), with_tools().trajectory)
    with pytest.raises(NotTrainable, match="sampled no token"):
        rollout("task", sample(), None)


def test_a_group_gives_its_counted_samples_in_order() -> None:
    group = accepted(
        sample(job_id="late", index=1),
        sample(job_id="lost", index=2, outcome=Outcome.INFRA_ERROR, reward=None, replaced=True),
        sample(job_id="early", index=0, outcome=Outcome.AGENT_ERROR, reward=0.0),
        n=2,
    )
    tokens = {"late": with_tools().trajectory, "early": truncated().trajectory, "lost": with_tools().trajectory}
    found = rollouts(group, tokens)
    assert [(each.sample.job_id, each.reward, each.task_id) for each in found] == [
        ("early", 0.0, "task"),
        ("late", 0.75, "task"),
    ]


@pytest.mark.parametrize("model", ["", "critic"])
def test_each_model_of_a_sample_has_its_own_rows_and_shares(model: str) -> None:
    """The control: the sample has rows of the other, which a trainer of this one must not get."""
    alone = compacted() if model == "" else with_tools()
    found = two_models().of(model)
    kept = [(row.prompt_ids, row.response_ids, row.loss_mask, row.share) for row in found.rows]
    assert kept == [(row.prompt_ids, row.response_ids, row.loss_mask, row.share) for row in alone.rows]
    whole = len([each for each in found.trajectory.segments if each.spans])
    assert (whole, len(kept)) == (3, len(alone.rows))
    assert [each.ids for each in completions(found)] == [each.ids for each in completions(alone)]
    assert len(verl.outputs(found)) == len(alone.rows)


def test_without_the_choice_a_trainer_would_get_the_other_models_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test before: its choice is taken out."""
    monkeypatch.setattr(Trajectory, "of_model", lambda self, _: list(enumerate(self.segments)))
    found = two_models()
    assert len(found.rows) == len(compacted().rows) + len(with_tools().rows)


def test_a_model_that_is_not_trained_in_a_sample_is_named() -> None:
    with pytest.raises(NotTrainable, match="no token that model 'judge' is trained on"):
        two_models().of("judge")


def test_v1_and_versions_know_the_policy_alone() -> None:
    """v1 gets one row, and it is not the other model's, which stands last; nor are its versions the policy's."""
    whole = two_models().trajectory
    assert prorl.messages(whole) == prorl.messages(compacted().trajectory)
    assert versions_of(whole) == versions_of(compacted().trajectory) == (7, 9)
    other = replace(whole, segments=whole.segments[-1:], turns=[replace(each, segment=0) for each in whole.turns[-3:]])
    assert (first_version(other, 5), versions_of(other)) == (5, None)


def test_an_exported_row_says_whose_it_is_and_its_share_of_that_models_tokens() -> None:
    rows = list(table.rows(sample_of(accepted(n=1), two_models().sample, two_models().trajectory)))
    assert [row.model for row in rows] == ["", "", "", "critic"]
    for model, alone in (("", compacted()), ("critic", with_tools())):
        assert [row.share for row in rows if row.model == model and row.share] == [row.share for row in alone.rows]


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
