"""The task of the training example, its demonstrators and its tokenizer."""

from pathlib import Path

import pytest

from examples.train.demonstrations import demonstration
from examples.train.family import Trails
from examples.train.tokenizer import TOOLS, make_tokenizer
from examples.train.trails import LENGTHS, trail
from tests.handlers.conftest import Stages, provider, stages
from workers.agent.hermes import Message
from workers.agent.loading import load_renderer
from workers.agent.tools import select

__all__ = ["provider", "stages"]
pytestmark = pytest.mark.anyio


def test_the_way_of_a_trail_leads_from_note_to_note_to_the_gold() -> None:
    for number in range(200):
        made = trail(f"any-{number}")
        assert len(made.way) - 1 in LENGTHS
        assert made.way[0] == made.start
        for here, following in zip(made.way, made.way[1:], strict=False):
            assert f"to {following}" in made.notes[here]
        assert made.notes[made.way[-1]] == f"gold {made.gold}"
        assert made.gold not in made.notes


def test_demonstrators_find_the_gold_of_about_four_in_ten() -> None:
    """So the policy that imitates them has groups with a spread of rewards from the first step on."""
    names = [f"any-{number}" for number in range(2000)]
    told = [demonstration(name)[-1]["tool_calls"][0]["function"]["arguments"]["message"] for name in names]
    found = sum(answer == trail(name).gold for name, answer in zip(names, told, strict=True))
    assert 0.36 < found / len(names) < 0.44


async def test_a_demonstration_has_the_ids_that_a_rollout_would_have(tmp_path: Path) -> None:
    """Prompt, what is sampled, and what the tool's answer adds: were one id another, imitation would teach a habit
    that rollouts never meet."""
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    renderer, tools = await load_renderer(tmp_path), select(["execute_bash", "finish"])
    messages = demonstration("any-2")
    ids = renderer.prompt([Message(role="user", content=messages[0]["content"])], tools)
    for said in messages[1:]:
        if said["role"] == "tool":
            ids += renderer.delta([Message(role="tool", content=said["content"])], tools)
            continue
        [call] = said["tool_calls"]
        spoken = tokenizer.apply_chat_template([said], tokenize=False).partition("assistant\n")[2].rstrip("\n")
        ids += renderer.ids(spoken)
        [read] = renderer.parse(renderer.ids(spoken)).calls
        assert (read.name, read.arguments) == (call["function"]["name"], call["function"]["arguments"])
    whole = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=True, return_dict=False)
    assert ids == whole[: len(ids)]
    assert tokenizer.decode(whole[len(ids) :]) == "\n"


async def test_who_follows_the_notes_earns_the_reward_and_who_guesses_does_not(stages: Stages) -> None:
    [example] = Trails.examples
    ran, score = await stages.rollout(Trails(), example.payload, list(example.says))
    assert ran.trajectory is not None
    assert [call.result for turn in ran.trajectory.turns for call in turn.tool_calls] == [
        "not 18 to 52", "gold 81", "81",
    ]  # fmt: skip
    assert score.reward == 1.0
    _, guessed = await stages.rollout(Trails(), example.payload, [example.says[-1].replace("81", "52")])
    assert guessed.reward == 0.0
