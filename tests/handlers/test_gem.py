"""An episode of GEM is its seed, the policy's texts and what its code printed; the package itself goes through it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.agent.test_journal import Log
from tests.converters.published import importable
from tests.handlers.conftest import Stages
from workers.handlers.blame import Raised
from workers.handlers.clocks import AskTime
from workers.handlers.gem.family import Gem
from workers.handlers.gem.replay import Episode, GemPosition
from workers.handlers.rows import BadRow
from workers.rehearsal.stages import RehearsalRun

pytestmark = pytest.mark.anyio
GUESS = {"env_id": "game:GuessTheNumber-v0-easy", "seed": 7}  # between 1 and 10, in four turns
SUM = {"env_id": "rg:chain_sum", "seed": 3}
CODE = "Let me see.\n```python\nprint(6 * 7)\n```"


@pytest.fixture(scope="module")
async def gem() -> AsyncIterator[Gem]:
    """One for all: its process takes seconds to start."""
    with pytest.MonkeyPatch.context() as patched:
        importable(patched)
        made = Gem()
        yield made
        await made.aclose()


async def position(gem: Gem, task: dict[str, Any], *actions: str) -> GemPosition:
    found = await gem._position(Episode(**task, actions=actions))
    assert found is not None
    return found


def guess(number: int) -> str:
    return f"It may be \\boxed{{{number}}}."


async def secret(gem: Gem) -> int:
    """By asking the environment, as a policy may."""
    low, high = 1, 10
    while low < high:
        middle = (low + high) // 2
        found = await position(gem, GUESS, guess(middle))
        if found.over:
            return middle
        low, high = (low, middle - 1) if "lower" in found.told else (middle + 1, high)
    return low


async def test_the_environment_answers_each_text_until_the_episode_is_over(stages: Stages, gem: Gem) -> None:
    number = await secret(gem)
    other = 1 if number != 1 else 2
    ran, score = await stages.rollout(gem, GUESS, [guess(other), guess(number)])
    assert ran.export == {"actions": [guess(other), guess(number)], "printed": []}
    first, last = ran.trajectory.turns
    hint = f"At turn 1, you guessed {other}, and the target number is higher than {other}.\nEnter your next guess."
    assert (first.reply, last.reply, first.tool_calls) == (hint, "", [])
    assert "You are playing Guess The Number." in ran.trajectory.segments[0].prompt_text
    assert (ran.trajectory.stop_reason, score.reward, score.note) == ("answer", 1.0, None)
    assert score.parts == {"steps": 2.0, "code_runs": 0.0}


async def test_a_text_that_is_no_action_earns_what_the_environment_gives_for_it(stages: Stages, gem: Gem) -> None:
    ran, score = await stages.rollout(gem, GUESS, ["I have won."])
    assert (len(ran.trajectory.turns), score.reward) == (1, -0.1)


async def test_the_last_step_weighs_as_the_environment_says(stages: Stages, gem: Gem) -> None:
    """Out of turns, this one pays by nearness."""
    number = await secret(gem)
    far = 10 if number < 6 else 1
    texts = [guess(each) for each in [each for each in range(1, 11) if each not in {number, far}][:3]] + [guess(far)]
    _, score = await stages.rollout(gem, GUESS, texts)
    assert score.reward == pytest.approx(1 - abs(far - number) / 9)


async def test_an_episode_that_was_cut_keeps_its_reward_and_says_so(stages: Stages, gem: Gem) -> None:
    """EVAL goes through it again and believes nothing of RUN but the texts and what code printed."""
    other = 1 if await secret(gem) != 1 else 2
    score = await stages.score(gem, GUESS, {"actions": [guess(other)], "reward": 1.0})
    assert (score.reward, score.note) == (0.0, "the episode was not ended")


async def test_code_runs_in_the_sandbox_and_gems_tool_tells_what_it_printed(stages: Stages, gem: Gem) -> None:
    task = {**SUM, "wrapper": "python_tool"}
    ran, score = await stages.rollout(gem, task, [CODE, "```python\n1 / 0\n```", "\\boxed{no number}"])
    first, second, last = ran.trajectory.turns
    assert first.reply == "Code execution result: 42"
    assert "ZeroDivisionError: division by zero" in second.reply
    assert last.reply == ""
    assert "executable Python code" in ran.trajectory.segments[0].prompt_text
    assert [each["ok"] for each in ran.export["printed"]] == [True, False]
    assert score.reward == pytest.approx(0.05 + 0.25 + 0.05)  # GEM's rewards for the use of its tool
    assert score.parts == {"steps": 3.0, "code_runs": 2.0}


async def test_code_that_may_have_changed_the_sandbox_is_not_run_again(
    stages: Stages, gem: Gem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says depends on what ran before it. So such a rollout has no log to continue with."""
    log = Log()
    monkeypatch.setattr(RehearsalRun, "log", property(lambda _: log, lambda *_: None), raising=False)
    await stages.rollout(gem, {**SUM, "wrapper": "python_tool"}, [CODE, "\\boxed{no number}"])
    assert log.records == []


async def test_code_that_nobody_ran_is_not_run_where_it_is_scored(stages: Stages, gem: Gem) -> None:
    score = await stages.score(gem, {**SUM, "wrapper": "python_tool"}, {"actions": [CODE], "printed": []})
    assert (score.reward, score.note) == (0.0, "the episode was not ended")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**GUESS, "env_id": "game:GuessTheNumber-v0-eazy"}, "GEM has no such environment: did you mean 'game:Guess"),
        ({**GUESS, "config": {"max_number": "many"}}, "game:GuessTheNumber-v0-easy: TypeError: "),
        ({**SUM, "wrapper": "search_tool"}, "GEM has no such Python tool: "),
    ],
)
async def test_an_environment_that_cannot_be_made_says_why(
    stages: Stages, gem: Gem, row: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadRow, match=reason):
        await stages.rollout(gem, row, ["x"])


class Slower(Gem):
    """An environment whose steps take too long where they are scored, all of them."""

    async def _position(self, episode: Episode, given: AskTime | None = None) -> GemPosition:
        if episode.actions:
            raise Raised("it took too long", passing=True)
        return GemPosition(told="It begins.")


async def test_texts_that_cannot_be_played_again_earn_nothing_where_the_environment_begins(stages: Stages) -> None:
    score = await stages.score(Slower(), GUESS, {"actions": ["1", "2"], "printed": []})
    assert (score.reward, score.note) == (0.0, "it ended the episode: it took too long")
