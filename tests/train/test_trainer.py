"""The trainer of the training example refuses to learn from what it cannot trust."""

import asyncio
from pathlib import Path

import pytest

from examples.train.learner_process import LearnerFailed, LearnerProcess
from examples.train.trainer import NotEqual, Plan, Trainer, task_of
from prorl_mq.client import AsyncClient

pytestmark = pytest.mark.anyio


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    plan = Plan(run_id="r", seed=1, steps=1, first_version=7, policy=tmp_path, weights=tmp_path)
    client = AsyncClient("http://127.0.0.1:1")
    return Trainer(client, LearnerProcess(Path("true")), plan, tell=lambda _: None)


@pytest.mark.parametrize("difference", [0.0011, float("nan")])
async def test_log_probabilities_that_differ_at_equal_weights_end_the_run(trainer: Trainer, difference: float) -> None:
    trainer._check({"compared_tokens": 5, "max_difference": 0.0009})
    with pytest.raises(NotEqual, match="differs from the rollout's"):
        trainer._check({"compared_tokens": 5, "max_difference": difference})


async def test_a_learner_that_dies_is_an_error_and_no_silence(tmp_path: Path) -> None:
    program = tmp_path / "dies"
    program.write_text("#!/bin/sh\nread request\nexit 3\n")
    program.chmod(0o755)
    async with LearnerProcess(program) as learner, asyncio.timeout(60):
        with pytest.raises(LearnerFailed, match="code 3"):
            await learner.load(tmp_path, seed=1)


def test_held_out_trails_are_none_that_is_learnt_from() -> None:
    held_out = {str(task_of(f"held-out-{number}", "trails").payload["notes"]) for number in range(64)}
    learnt = {
        str(task_of(f"train-{seed}-{number}", "trails").payload["notes"]) for seed in (1, 2, 3) for number in range(960)
    }
    assert len(held_out) == 64
    assert not held_out & learnt
