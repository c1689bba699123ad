"""Data sets of reasoning-gym reward their own answers alone; no text makes a family fail."""

import pytest

from tests.graders.fuzz import fuzz_answers, fuzz_environments
from tests.graders.gym_corpus import surveyed
from workers.handlers.gym_checks import reasons
from workers.handlers.gym_client import DatasetPlace
from workers.handlers.gym_process import entry

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]
SEED = 16
NAMES = sorted(reasons().keys() - {"propositional_logic"})  # those that reasoning-gym alone scores wrongly
NAMED = {  # answers to one entry of a data set, which its own scorer gives everything for
    "coin_flip": ["0", "0.0"],
    "complex_arithmetic": ["nan", "nan+nanj"],
    "puzzle24": ["24", "3*8", "6*4*1*1", "24.9"],
    "game_of_life_halting": ["0", "wombat", "it will"],
    "gsm_symbolic": ["-5", "5 or 6"],
    "number_sorting": ["[]", "[1]"],
}


async def test_data_sets_that_score_wrongly_by_themselves_do_not_here() -> None:
    found = await surveyed(SEED, 2, NAMES)
    assert [each.name for each in found] == NAMES
    assert {each.name: each.refused for each in found if each.refused} == {}
    assert {each.name: each.accepted for each in found if each.accepted} == {}
    assert sum(each.accepted_upstream for each in found) >= len(NAMES), "the corpus finds what is wrong upstream"


@pytest.mark.parametrize("name", NAMED)
def test_named_wrong_answers_earn_less_than_everything(name: str) -> None:
    from workers.handlers.gym_process import score

    dataset, found = entry(DatasetPlace(name=name, seed=3, size=1))
    earned = {said: score(name, dataset, said, found) for said in NAMED[name]}
    assert {said: reward for said, reward in earned.items() if not reward < 1.0} == {}


async def test_no_text_makes_a_scorer_of_answers_fail() -> None:
    found = await fuzz_answers(SEED, 150)
    assert [(each.family, each.earned, each.violations) for each in found] == [("math", 0, []), ("stem, rules", 0, [])]


async def test_no_text_makes_a_game_or_a_data_set_fail() -> None:
    found = await fuzz_environments(SEED, 12, places=3, gem=False)
    assert {each.family: each.violations for each in found if each.violations} == {}
    assert {each.family: each.earned for each in found if each.earned} == {}
    assert len(found) == 6
