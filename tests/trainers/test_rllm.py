"""An rLLM workflow gives episodes whose steps its trainer merges into the segments as they were sampled."""

import types
from typing import Any

import pytest

from prorl_mq.bridges import rllm
from prorl_mq.converters.rllm import termination_reason
from prorl_mq.converters.rollout import logprobs
from prorl_mq.schema.messages import Outcome
from tests.api.service import Worker
from tests.converters.made import ALL, compacted, truncated, with_tools
from tests.trainers import rllm_interface
from tests.trainers.rllm_interface import TerminationReason, rows
from tests.trainers.serving import row, serving, standard

pytestmark = pytest.mark.anyio


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    rllm_interface.installed(monkeypatch)
    return rllm.workflow(rllm_interface)


@pytest.fixture
def workflow(theirs: Any, url: str) -> Any:
    """As its engine makes each of its pool."""
    engine = types.SimpleNamespace(
        train_sampling_params={"temperature": 0.7, "top_k": -1, "top_p": 1.0, "logprobs": 1},
        is_validation=False,
        max_prompt_length=512,
        max_response_length=256,
    )
    return theirs(rollout_engine=engine, executor=None, store=None, url=url)


async def test_a_run_is_one_sample_with_its_reward(workflow: Any, worker: Worker) -> None:
    task = row(0.25)
    async with serving(worker, 1):
        episode = await workflow.run_with_termination_handling(task=task, uid="t:0")
    assert (episode.id, episode.task, episode.is_correct) == ("t:0", task, True)
    assert episode.termination_reason is TerminationReason.ENV_DONE
    [trajectory] = episode.trajectories
    assert (trajectory.reward, [step.weight_version for step in trajectory.steps]) == (0.25, [7, 8, 8])
    assert [step.done for step in trajectory.steps] == [False, False, True]


async def test_a_standard_row_is_a_task_and_the_engines_lengths_are_limits(workflow: Any, worker: Worker) -> None:
    async with serving(worker, 1):
        episode = await workflow.run_with_termination_handling(task=standard(0.5), uid="t:0")
    assert episode.trajectories[0].reward == 0.5
    sampling = rllm._sampling(workflow.rollout_engine, validates=False)
    assert (sampling.max_tokens, sampling.max_tokens_per_turn, sampling.max_context_tokens) == (256, 256, 768)


async def test_a_sample_that_infrastructure_lost_is_an_error_and_no_trajectory(workflow: Any, worker: Worker) -> None:
    async with serving(worker, 2, outcome=Outcome.INFRA_ERROR, reward=None):
        episode = await workflow.run_with_termination_handling(task=row(0.25), uid="t:0")
    assert (episode.termination_reason, episode.trajectories) == (TerminationReason.ERROR, [])
    assert episode.info["error"]["error_type"] == "NotTrainable"


@pytest.mark.parametrize("case", ALL)
@pytest.mark.usefixtures("theirs")
def test_merged_steps_are_the_segments_that_were_sampled(case: str) -> None:
    found = ALL[case]()
    [trajectory] = rllm.episode(found, {}, "t:0").trajectories
    assert [(each.prompt, each.response, each.mask, each.logprobs) for each in rows(trajectory)] == [
        (list(segment.prompt_ids), list(segment.response_ids), list(segment.loss_mask), logprobs(segment))
        for _, segment in found.segments
    ]


def test_each_limit_has_its_reason() -> None:
    reasons = [TerminationReason(termination_reason(each)) for each in (with_tools(), truncated(), compacted())]
    assert reasons == [
        TerminationReason.ENV_DONE,
        TerminationReason.MAX_TURNS_EXCEEDED,
        TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED,
    ]
