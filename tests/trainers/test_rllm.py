"""An rLLM workflow gives episodes whose steps its trainer merges into the segments as they were sampled."""

import types
from collections.abc import AsyncIterator
from typing import Any

import pytest

from prorl_mq.client.rollouts import close_shared
from prorl_mq.converters.rllm import termination_reason
from prorl_mq.converters.rollout import logprobs
from prorl_mq.schema.messages import Outcome
from tests.api.service import Worker
from tests.converters.made import ALL, compacted, truncated, with_tools
from tests.trainers import rllm_interface
from tests.trainers.rllm_interface import TerminationReason, rows
from tests.trainers.serving import bridge, row, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    rllm_interface.installed(monkeypatch)
    return bridge("rllm_workflow")


@pytest.fixture
async def workflow(theirs: Any, url: str) -> AsyncIterator[Any]:
    """As its engine makes each of its pool."""
    engine = types.SimpleNamespace(
        train_sampling_params={"temperature": 0.7, "top_k": -1, "top_p": 1.0, "logprobs": 1}, is_validation=False
    )
    yield theirs.ProrlWorkflow(rollout_engine=engine, executor=None, store=None, url=url)
    await close_shared()


async def test_a_run_is_one_sample_with_its_reward(workflow: Any, worker: Worker) -> None:
    task = row(0.25)
    async with serving(worker, 1):
        episode = await workflow.run_with_termination_handling(task=task, uid="t:0")
    assert (episode.id, episode.task, episode.is_correct) == ("t:0", task, True)
    assert episode.termination_reason is TerminationReason.ENV_DONE
    [trajectory] = episode.trajectories
    assert (trajectory.reward, [step.weight_version for step in trajectory.steps]) == (0.25, [7, 8, 8])
    assert [step.done for step in trajectory.steps] == [False, False, True]


async def test_a_sample_that_infrastructure_lost_is_an_error_and_no_trajectory(workflow: Any, worker: Worker) -> None:
    async with serving(worker, 2, outcome=Outcome.INFRA_ERROR, reward=None):
        episode = await workflow.run_with_termination_handling(task=row(0.25), uid="t:0")
    assert (episode.termination_reason, episode.trajectories) == (TerminationReason.ERROR, [])
    assert episode.info["error"]["error_type"] == "NotTrainable"


@pytest.mark.parametrize("case", ALL)
def test_merged_steps_are_the_segments_that_were_sampled(theirs: Any, case: str) -> None:
    found = ALL[case]()
    [trajectory] = theirs.episode(found, {}, "t:0").trajectories
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
