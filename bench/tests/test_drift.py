"""Appended ids never break a prefix, whatever is sampled; text that is encoded again does."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from bench.inference.drift import Exchange, breaks, measure
from prorl_mq.schema.messages import Sampling
from tests.agent.vocabularies import qwen
from workers.agent.renderer import Renderer
from workers.inference.protocol import Completion

pytestmark = pytest.mark.anyio
SAMPLING = Sampling(temperature=1.2, max_tokens_per_turn=24, seed=0)


class HotPolicy:
    """Samples any id of the vocabulary, as a very hot model would; every third turn is cut, every seventh aborted."""

    def __init__(self, renderer: Renderer, name: str) -> None:
        self.source = random.Random(name)
        self.stops = renderer.stop_ids
        self.turns = 0

    async def generate(self, prompt_ids: Sequence[int], *, max_tokens: int, **_: Any) -> Completion:
        self.turns += 1
        ids = [self.source.randrange(151_643) for _ in range(self.source.randrange(max_tokens))]
        finish = "abort" if self.turns % 7 == 0 else "length" if self.turns % 3 == 0 else "stop"
        if finish == "stop":
            ids.append(self.source.choice(self.stops))
        return Completion(
            ids=ids, logprobs=[-1.0] * len(ids), finish_reason=finish, prompt_tokens=len(prompt_ids), backend="hot"
        )


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(qwen("qwen3"), "qwen3")


async def test_500_trajectories_of_8_turns_break_no_prefix(renderer: Renderer) -> None:
    found = await measure(
        "ids", lambda name: HotPolicy(renderer, name), renderer, trajectories=500, turns=8, sampling=SAMPLING
    )
    assert (found.boundaries, found.breaks, found.broken_trajectories) == (3500, 0, 0)
    assert found.sampled_tokens > 40_000


async def test_the_same_by_text_breaks_prefixes(renderer: Renderer) -> None:
    """Else the test above could not fail."""
    found = await measure(
        "text", lambda name: HotPolicy(renderer, name), renderer, trajectories=20, turns=8, sampling=SAMPLING
    )
    assert found.breaks > found.boundaries / 4
    assert found.broken_trajectories == 20


def test_a_break_is_a_prompt_that_does_not_start_with_the_one_before() -> None:
    first = Exchange(sent=(1, 2), sampled=(3, 4))
    assert breaks([first, Exchange(sent=(1, 2, 3, 4, 5), sampled=())]) == 0
    assert breaks([first, Exchange(sent=(1, 2, 3, 5), sampled=()), Exchange(sent=(1, 2, 3, 5), sampled=())]) == 1
