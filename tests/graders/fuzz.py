"""Hostile texts through whole families: each must end in a finite reward, or in a move that is refused."""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tests.graders.grading import Here
from tests.graders.hostile import texts
from workers.handler import Handler, Ran
from workers.handlers.games.family import Games
from workers.handlers.gem.family import Gem
from workers.handlers.math.family import Math
from workers.handlers.reasoning_gym import ReasoningGym
from workers.handlers.stem.rules import decided
from workers.rehearsal.stages import Rehearsal, task_of

GAMES = (
    "2048-v0", "Bandit-v0", "Blackjack-v0", "Countdown-v0", "Cryptarithm-v0", "FifteenPuzzle-v0", "FrozenLake-v0",
    "GuessTheNumber-v0",
    "LightsOut-v0", "LogicPuzzle-v0", "Mastermind-v0", "Minesweeper-v0", "PegJump-v0", "RushHour-v0", "Secretary-v0",
    "Slitherlink-v0", "Sokoban-v0", "Sudoku-v0", "ThreeCardMonte-v0", "TowerOfHanoi-v0",
)  # fmt: skip
EPISODES = (
    "game:GuessTheNumber-v0-easy",
    "game:Sudoku-v0-easy",
    "game:Mastermind-v0-easy",
    "game:Minesweeper-v0-easy",
    "rg:chain_sum",
)
DATA_SETS = (
    "prime_factorization",
    "countdown",
    "jugs",
    "rush_hour",
    "string_insertion",
    "complex_arithmetic",
    "boxnet",
)
MATH = {"question": "How much?", "answer": r"\frac{7919}{104729}", "tools": False}
STEM = ("5 mW", "B", "105", "H_2O", "mitochondria", "7919.104729 m/s^2")


class Tried(NamedTuple):
    """How many texts a family was given, how many of them earned everything, and what went wrong."""

    family: str
    texts: int
    earned: int
    violations: list[str]


Score = Callable[[str], Awaitable[float]]


async def tried(family: str, said: Iterator[str], score: Score) -> Tried:
    """No exception may leave the family, whatever was said, and every reward is a number."""
    count = earned = 0
    violations: list[str] = []
    for text in said:
        count += 1
        try:
            reward = await score(text)
        except Exception as error:
            violations.append(f"{text[:80]!r}: {type(error).__name__}: {error}"[:300])
            continue
        earned += reward >= 1.0
        if not math.isfinite(reward):
            violations.append(f"{text[:80]!r}: {reward}")
    return Tried(family, count, earned, violations)


def scoring(family: Handler, row: Mapping[str, Any], export: Callable[[str], Any]) -> Score:
    """EVAL of one text."""
    rehearsal, task = Rehearsal(None, Path()), task_of(family, row)

    async def score(text: str) -> float:
        return (await rehearsal.score(family, task, Ran(trajectory=None, export=export(text)))).reward

    return score


async def fuzz_answers(seed: int, count: int) -> list[Tried]:
    """Mathematics and science, in this process."""
    family = Math()
    family._checker = Here("workers.handlers.math.checker")
    said = [f"\\boxed{{{text}}}" for text in texts(seed, count)]

    async def by_rule(text: str) -> float:
        return float(any(decided(text, [gold]) is True for gold in STEM))

    return [
        await tried("math", iter(said), scoring(family, MATH, lambda text: {"answer": text})),
        await tried("stem, rules", texts(seed, count), by_rule),
    ]


async def fuzz_environments(seed: int, count: int, *, places: int, gem: bool) -> list[Tried]:
    """Games, episodes and data sets, each text in a confined fork of its own; `places` of each kind."""
    found: list[Tried] = []
    async with AsyncExitStack() as closing:
        games, gym = Games(), ReasoningGym()
        closing.push_async_callback(games.aclose)
        closing.push_async_callback(gym.aclose)
        for name in GAMES[:places]:
            score = scoring(games, {"env_id": name, "seed": 7}, lambda text: {"actions": [text, text]})
            found.append(await tried(f"textarena {name}", texts(seed, count), score))
        for name in DATA_SETS[:places]:
            score = scoring(gym, {"name": name, "seed": 7, "tools": False}, lambda text: {"answer": text})
            found.append(await tried(f"reasoning_gym {name}", texts(seed, count), score))
        if gem:
            episodes = Gem()
            closing.push_async_callback(episodes.aclose)
            for name in EPISODES[:places]:
                score = scoring(episodes, {"env_id": name, "seed": 7}, lambda text: {"actions": [text, text]})
                found.append(await tried(f"gem {name}", texts(seed, count), score))
    return found
