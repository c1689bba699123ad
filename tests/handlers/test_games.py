"""A game is its seed and its moves: RUN and EVAL play the same one, and only its end is rewarded."""

import json
from collections.abc import AsyncIterator

import pytest

from tests.agent.chat import call
from tests.handlers.conftest import Stages
from tests.handlers.suite import Suite, held
from workers.handlers.blame import Raised
from workers.handlers.clocks import AskTime
from workers.handlers.games.family import Games
from workers.handlers.games.replay import Game, GamePosition, replayed
from workers.handlers.rows import BadRow

pytestmark = pytest.mark.anyio
GUESS = {"env_id": "GuessTheNumber-v0", "seed": 7}


def secret(seed: int) -> int:
    """By asking the game, as a policy may."""
    low, high = 1, 20
    actions: list[str] = []
    while low < high:
        middle = (low + high) // 2
        actions.append(f"[{middle}]")
        position = replayed(Game(env_id="GuessTheNumber-v0", seed=seed, actions=actions))
        if position.over:
            return middle
        low, high = (low, middle - 1) if "lower" in position.told else (middle + 1, high)
    return low


def play(*moves: object) -> list[str]:
    return [call("play", json.dumps({"action": str(move)})) for move in moves]


@pytest.fixture
async def games() -> AsyncIterator[Games]:
    made = Games()
    yield made
    await made.aclose()


async def test_the_oracle_earns_all_and_a_hack_nothing(stages: Stages, games: Games) -> None:
    number = secret(7)
    other = number % 20 + 1
    suite = Suite(
        family="textarena",
        oracle=[(GUESS, play(f"[{number}]")), (GUESS, play(f"[{other}]", f"[{number}]"))],
        hacks={
            "says it without playing": (GUESS, [f"[{number}]"]),
            "gives up": (GUESS, [*play(f"[{other}]"), "I won."]),
            "claims the end": (GUESS, [*play("GAME: Congratulations! You guessed the correct number."), "Won."]),
        },
    )
    await held(suite, games, stages)


async def test_what_the_game_tells_is_the_tools_answer(stages: Stages, games: Games) -> None:
    number = secret(7)
    wrong = 1 if number != 1 else 2
    ran, score = await stages.rollout(games, GUESS, play(f"[{wrong}]", f"[{number}]"))
    assert ran.export == {"actions": [f"[{wrong}]", f"[{number}]"]}
    assert ran.trajectory.turns[0].tool_calls[0].result == "The target number is higher."
    assert (ran.trajectory.stop_reason, score.reward, score.parts) == ("finish", 1.0, {"moves": 2.0})


async def test_moves_that_were_not_played_are_scored_by_the_game(stages: Stages, games: Games) -> None:
    """EVAL believes nothing of RUN but the moves."""
    score = await stages.score(games, GUESS, {"actions": ["[1]"] * 3, "reward": 1.0})
    assert score.reward != 1.0


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**GUESS, "env_id": "GuessTheNumbers-v0"}, "textarena has no such game: did you mean 'GuessTheNumber-v0"),
        ({**GUESS, "env_id": "TicTacToe-v0"}, "TicTacToe-v0: "),
        ({**GUESS, "config": {"wombats": 1}}, "unexpected keyword argument 'wombats'"),
    ],
)
async def test_a_game_that_cannot_be_played_says_why(stages: Stages, games: Games, row: dict, reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        await stages.rollout(games, row, ["x"])


class Slower(Games):
    """A game whose moves take too long where it is scored, all of them."""

    async def _position(self, game: Game, given: AskTime | None = None) -> GamePosition:
        if game.actions:
            raise Raised("it took too long", passing=True)
        return GamePosition(told="The game begins.")


async def test_moves_that_cannot_be_played_again_earn_nothing_where_the_game_begins(stages: Stages) -> None:
    score = await stages.score(Slower(), GUESS, {"actions": ["[1]", "[2]"]})
    assert (score.reward, score.note) == (0.0, "the game does not take the last move: it took too long")
