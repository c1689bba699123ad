"""Every data set can be asked and scored; no answer can hurt the scorer."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.chat import call
from tests.handlers.conftest import Stages
from tests.handlers.suite import Suite, held
from workers.handlers.forks import ForkLimits, Forks
from workers.handlers.gym_client import DatasetPlace, GymClient, ScoringFailed, check_answer
from workers.handlers.reasoning_gym import ReasoningGym
from workers.handlers.rows import BadRow

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("reasoning_gym")]
NO_ORACLE = {"boxnet", "graph_color", "rubiks_cube", "rush_hour"}
SUM = {"name": "chain_sum", "seed": 1, "size": 1}
DUMP = """
import json, sys
from reasoning_gym.factory import DATASETS, create_dataset
names = sorted(set(DATASETS) - {"composite", "propositional_logic"})
made = {name: create_dataset(name, seed=1, size=1)[0] for name in names}
print("entries", json.dumps({name: [e["question"], e["answer"]] for name, e in made.items()}))
"""


@pytest.fixture(scope="module")
def entries() -> dict[str, Any]:
    """Question and oracle answer of every data set, from a process with the same hash seed."""
    command = [sys.executable, "-W", "ignore", "-c", DUMP]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return json.loads(said.partition("entries")[2])


@pytest.fixture(scope="module")
def client() -> Iterator[GymClient]:
    """One process for all tests here: it takes seconds to start."""
    made = GymClient()
    yield made
    made.close()


@pytest.fixture
def gym(client: GymClient) -> ReasoningGym:
    made = ReasoningGym()
    made._gym = client
    return made


def place(name: str) -> DatasetPlace:
    return DatasetPlace(name=name, seed=1, size=1)


@pytest.mark.slow
async def test_every_data_set_asks_and_rewards_its_oracle(client: GymClient, entries: dict[str, Any]) -> None:
    wrong = {}
    for name, (question, answer) in entries.items():
        assert await client.question(place(name)) == question
        if name in NO_ORACLE:
            assert answer is None
            continue
        score = await client.score(place(name), answer)
        if score != 1.0:
            wrong[name] = score
    assert not wrong
    assert len(entries) == 104


async def test_the_oracle_earns_all_and_a_hack_nothing(
    stages: Stages, gym: ReasoningGym, entries: dict[str, Any]
) -> None:
    def said(name: str, answer: str) -> tuple[dict[str, Any], list[str]]:
        return {"name": name, "seed": 1, "size": 1, "tools": False}, [f"<answer>{answer}</answer>"]

    suite = Suite(
        family="reasoning_gym",
        oracle=[said(name, entries[name][1]) for name in ("chain_sum", "countdown", "string_insertion")],
        hacks={
            "wrong": said("chain_sum", "wombat"),
            "a program for eval": said("string_insertion", "__import__('os')._exit(0)"),
            "a program for sympy": said("countdown", "__import__('os').getpid()"),
            "a lambda": said("countdown", "lambda: 1"),
            "what the scorer cannot read": said("prime_factorization", "wombat"),
        },
    )
    await held(suite, gym, stages)


async def test_without_tools_there_is_one_turn(stages: Stages, gym: ReasoningGym) -> None:
    ran, _ = await stages.rollout(gym, {**SUM, "tools": False}, ["<answer>wombat</answer>"])
    assert len(ran.trajectory.turns) == 1


async def test_with_tools_the_message_of_finish_is_the_answer(
    stages: Stages, gym: ReasoningGym, entries: dict[str, Any]
) -> None:
    answer = entries["chain_sum"][1]
    turns = [
        call("execute_bash", json.dumps({"command": f"echo {answer}"})),
        call("finish", json.dumps({"message": answer})),
    ]
    ran, score = await stages.rollout(gym, SUM, turns)
    assert ran.trajectory.turns[0].tool_calls[0].result == answer
    assert (ran.trajectory.stop_reason, score.reward) == ("finish", 1.0)


async def test_an_empty_answer_earns_nothing(stages: Stages, gym: ReasoningGym) -> None:
    score = await stages.score(gym, SUM, {"answer": " "})
    assert (score.reward, score.note) == (0.0, "no answer")


async def test_a_scorer_that_raises_is_a_note_not_a_crash(stages: Stages, gym: ReasoningGym) -> None:
    score = await stages.score(gym, {"name": "prime_factorization", "seed": 1}, {"answer": "wombat"})
    assert score.reward == 0.0
    assert "the scorer of prime_factorization gave no score: ValueError" in (score.note or "")


async def test_all_jobs_of_a_task_see_one_question(stages: Stages, gym: ReasoningGym) -> None:
    payload = {"name": "zebra_puzzles", "seed": 3, "tools": False}
    seen = await asyncio.gather(*(stages.rollout(gym, payload, ["I do not know."]) for _ in range(4)))
    assert len({ran.trajectory.segments[0].prompt_text for ran, _ in seen}) == 1
    assert len(gym._questions) == 1


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"name": "chain_summ"}, r"no data set 'chain_summ'; it has .*chain_sum"),
        ({"name": "chain_sum", "index": 500}, "index 500 is outside a data set of size 500"),
        ({"name": "chain_sum", "config": {"wombats": 1}}, "does not take this config: .*wombats"),
        ({"name": "composite"}, "does not take this config"),
        ({"name": "propositional_logic"}, "is not offered: its scorer gives everything for a premise"),
    ],
)
async def test_a_place_that_does_not_exist_is_an_error_that_says_why(
    client: GymClient, payload: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadRow, match=reason):
        await client.question(DatasetPlace(seed=1, **payload))


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("string_insertion", "__import__('os').system('true')"),
        ("n_queens", "[x for x in ().__class__.__mro__]"),
        ("binary_matrix", "exit()"),
        ("countdown", "__import__('os').getpid()"),
        ("puzzle24", "exec"),
        ("polynomial_multiplication", "x.__class__"),
        ("simple_integration", "lambda: 1"),
    ],
)
async def test_an_answer_that_is_a_program_is_not_run(name: str, answer: str) -> None:
    with pytest.raises(ScoringFailed):
        check_answer(name, answer)


@pytest.mark.slow
async def test_an_answer_that_never_ends_costs_only_itself(
    client: GymClient, entries: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = Forks("workers.handlers.gym_process", ForkLimits(cpu_s=2))
    monkeypatch.setattr(client, "_forks", impatient)
    try:
        with pytest.raises(ScoringFailed, match="too long, too much memory, or crashed"):
            await client.score(place("countdown"), "9**9**9**9")
        assert await client.score(place("countdown"), entries["countdown"][1]) == 1.0
    finally:
        await asyncio.to_thread(impatient.close)


async def test_the_process_is_started_again_when_it_died(client: GymClient) -> None:
    first = await client.question(place("chain_sum"))
    assert client._forks._process is not None
    client._forks._process.kill()
    client._forks._process.wait()
    assert await client.question(place("chain_sum")) == first
