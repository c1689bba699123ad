"""The update of the training example, on a random model, against a forward pass of a program of its own."""

import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.train.learner_process import LearnerProcess
from tests.vllm.scoring import Scorer
from tests.vllm.server import state_directory

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("learner")]
PROMPT, RESPONSE = 6, 10


@pytest.fixture(scope="module")
def model() -> Path:
    return state_directory() / "models/tiny"


@pytest.fixture(scope="module")
def scorer(model: Path) -> Iterator[Scorer]:
    made = Scorer(model.parents[1] / "vllm/bin/python")
    yield made
    made.close()


@pytest.fixture
async def learner(model: Path, tmp_path: Path) -> AsyncIterator[LearnerProcess]:
    async with LearnerProcess(model.parents[1] / "vllm/bin/python") as made:
        await made.load(model, seed=1)
        await made.save(tmp_path / "first", version=1)
        yield made


def sample(scorer: Scorer, model: Path, seed: int, advantage: float) -> dict[str, Any]:
    """Two turns with inserted tokens between them, as the model would have given their log-probabilities."""
    dice = random.Random(seed)
    ids = [dice.randrange(20, 1000) for _ in range(PROMPT + RESPONSE)]
    mask = [1] * 4 + [0] * 3 + [1] * 3
    scores = scorer.score(ids, PROMPT, [(len(ids), model)], 1.0)
    return {
        "prompt_ids": ids[:PROMPT],
        "response_ids": ids[PROMPT:],
        "loss_mask": mask,
        "logprobs": [score if used else None for score, used in zip(scores, mask, strict=True)],
        "advantage": advantage,
        "version": "1",
    }


def gained(scorer: Scorer, before: Path, after: Path, one: dict[str, Any]) -> float:
    """How much more likely its sampled tokens have become, together."""
    ids = [*one["prompt_ids"], *one["response_ids"]]
    early, late = (scorer.score(ids, PROMPT, [(len(ids), weights)], 1.0) for weights in (before, after))
    return sum((new - old) * used for new, old, used in zip(late, early, one["loss_mask"], strict=True))


async def test_what_earned_more_becomes_likelier_and_what_earned_less_does_not(
    learner: LearnerProcess, scorer: Scorer, model: Path, tmp_path: Path
) -> None:
    right, wrong = sample(scorer, model, 1, 1.0), sample(scorer, model, 2, -1.0)
    learnt = await learner.learn([right, wrong])
    assert learnt["compared_tokens"] == 14
    assert learnt["max_difference"] < 1e-4
    await learner.save(tmp_path / "next", version=2)
    assert gained(scorer, model, tmp_path / "next", right) > 0.01
    assert gained(scorer, model, tmp_path / "next", wrong) < -0.01


async def test_a_log_probability_that_is_off_is_found_where_the_weights_are_the_same_and_only_there(
    learner: LearnerProcess, scorer: Scorer, model: Path
) -> None:
    right, off, older = (sample(scorer, model, seed, 0.0) for seed in (3, 4, 5))
    off["logprobs"][8] += 0.01
    older["logprobs"][0] += 5.0
    older["version"] = None
    learnt = await learner.learn([right, off, older])
    assert learnt["compared_tokens"] == 14
    assert learnt["max_difference"] == pytest.approx(0.01, abs=1e-4)


async def test_tokens_that_have_gained_enough_are_not_driven_further(
    learner: LearnerProcess, scorer: Scorer, model: Path, tmp_path: Path
) -> None:
    """Their ratio to the weights that sampled them is beyond the clip from the start."""
    gone = sample(scorer, model, 6, 1.0)
    gone["logprobs"] = [None if value is None else value - 1.0 for value in gone["logprobs"]]
    gone["version"] = None
    learnt = await learner.learn([gone])
    assert learnt["clipped"] == 1.0
    await learner.save(tmp_path / "next", version=2)
    assert gained(scorer, model, tmp_path / "next", gone) == pytest.approx(0.0, abs=1e-4)


async def test_what_an_older_version_sampled_is_compared_with_its_weights(
    learner: LearnerProcess, scorer: Scorer, model: Path, tmp_path: Path
) -> None:
    """Else a batch of leftovers of the step before could not be checked."""
    old = sample(scorer, model, 7, 1.0)
    await learner.learn([old, sample(scorer, model, 8, -1.0)])
    await learner.save(tmp_path / "next", version=2)
    learnt = await learner.learn([old])
    assert (learnt["compared_tokens"], learnt["max_difference"]) == (7, pytest.approx(0.0, abs=1e-4))
    old["version"] = "2"
    assert (await learner.learn([old]))["max_difference"] > 1e-3
