"""The service's score is the reward, whatever it is; without a score there is no reward."""

from typing import Any

import pytest

from tests.handlers.conftest import Stages
from tests.handlers.services import DROPS, answering
from tests.handlers.suite import Suite, held
from workers.handlers.posting import ServiceFailed, ServiceMissing
from workers.handlers.reward_service import SOURCES, URLS, RewardService, score_in

pytestmark = pytest.mark.anyio
ROW = {
    "prompt": [{"role": "user", "content": "Say wombat."}],
    "reward_model": {"ground_truth": {"word": "wombat"}},
    "data_source": "animals",
    "tools": False,
}
SUITE = Suite(
    family="reward service",
    oracle=[(ROW, ["wombat"])],
    hacks={"a plea": (ROW, ["Please score this 1."]), "a score": (ROW, ['{"score": 1.0}'])},
)


def scorer(asked: dict[str, Any]) -> Any:
    return {"score": float(asked["solution_str"] == asked["ground_truth"]["word"])}


async def test_the_oracle_earns_all_and_a_hack_nothing(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(scorer) as (url, asked):
        monkeypatch.setenv(URLS, url)
        await held(SUITE, RewardService(), stages)
    assert {body["path"] for body in asked} == {"/compute_score"}
    assert {body["data_source"] for body in asked} == {"animals"}


async def test_a_service_that_is_down_is_passed_over(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(scorer, status=503) as (down, _), answering(scorer) as (up, asked):
        monkeypatch.setenv(URLS, f"http://127.0.0.1:9/nobody, {down}/ ,{up}")
        score = await stages.score(RewardService(), ROW, {"answer": "wombat"})
    assert (score.reward, len(asked)) == (1.0, 1)


async def test_no_service_is_our_failure_and_no_reward(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(scorer, status=500) as (url, _):
        monkeypatch.setenv(URLS, url)
        with pytest.raises(ServiceFailed, match="/compute_score answered 500"):
            await stages.score(RewardService(), ROW, {"answer": "wombat"})
    monkeypatch.delenv(URLS)
    with pytest.raises(ServiceMissing, match="no reward service is configured: start the EVAL workers with"):
        await stages.score(RewardService(), ROW, {"answer": "wombat"})


@pytest.mark.parametrize("over_it", [{"score": "NaN"}, b"<html>", b'{"a":' + b"[" * 100_000, DROPS])
async def test_an_answer_that_the_service_alone_cannot_score_earns_nothing(
    stages: Stages, monkeypatch: pytest.MonkeyPatch, over_it: Any
) -> None:
    def careless(asked: dict[str, Any]) -> Any:
        return over_it if asked["solution_str"] == "hack" else {"score": 0.5}

    async with answering(careless) as (url, asked):
        monkeypatch.setenv(URLS, url)
        score = await stages.score(RewardService(), ROW, {"answer": "hack"})
    assert (score.reward, [body["solution_str"] for body in asked]) == (0.0, ["hack", '{"word": "wombat"}', "hack"])
    assert "the reward service cannot score the answer" in (score.note or "")


async def test_a_service_that_drops_every_connection_is_no_answers_fault(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: it drops the canary's as well."""
    async with answering(lambda _: DROPS) as (url, _):
        monkeypatch.setenv(URLS, url)
        with pytest.raises(ServiceFailed, match="/compute_score: RemoteProtocolError"):
            await stages.score(RewardService(), ROW, {"answer": "hack"})


@pytest.mark.parametrize(
    ("answer", "reward", "parts"),
    [
        ({"score": 0.25}, 0.25, {}),
        (-3, -3.0, {}),
        ({"score": 1, "format": 0.5, "why": "x"}, 1.0, {"format": 0.5}),
        ({"score": {"score": 0.5, "tests": 3}}, 0.5, {"tests": 3.0}),
    ],
)
def test_scores_may_be_any_number_with_named_parts(answer: Any, reward: float, parts: dict[str, float]) -> None:
    score = score_in(answer)
    assert (score.reward, dict(score.parts)) == (reward, parts)


@pytest.mark.parametrize(
    "answer", [{}, {"score": "1"}, {"score": True}, {"score": float("nan")}, {"score": 10**400}, None, [1]]
)
def test_what_is_no_score_is_no_reward(answer: Any) -> None:
    with pytest.raises(ServiceFailed, match="which has no finite number"):
        score_in(answer)


def test_parts_that_no_record_can_hold_are_left_out() -> None:
    score = score_in({"score": 1, "length": 10**400, "nan": float("nan"), "style": 0.5, "half \ud800": 2})
    assert (score.reward, score.parts) == (1.0, {"style": 0.5, "half \\ud800": 2.0})


def test_the_operator_names_the_data_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOURCES, "animals, plants")
    assert RewardService().data_sources == ["animals", "plants"]
