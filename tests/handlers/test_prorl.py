"""The families of ProRL Agent's reasoning tasks: function calls, instructions, entries of reasoning-gym, a judge."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.chat import call
from tests.handlers.conftest import Stages
from tests.handlers.suite import Suite, held
from tests.handlers.test_stem import judging
from workers.handlers.code.family import Code
from workers.handlers.forks import Forks
from workers.handlers.prorl.gym_entries import GymEntries
from workers.handlers.prorl.if_eval import IfEval
from workers.handlers.prorl.tool_call import ToolCalls
from workers.handlers.rows import BadRow
from workers.handlers.stem.family import UNBOXED, Stem

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("reasoning_gym")]


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "You are careful."}, {"role": "user", "content": text}]


def row(text: str, truth: Any, **more: Any) -> dict[str, Any]:
    """As trainers have it: both may be JSON text."""
    return {"prompt": json.dumps(asked(text)), "reward_model": json.dumps({"ground_truth": truth}), **more}


FERRY = {
    "type": "function",
    "function": {
        "name": "book_ferry",
        "description": "Books a ferry.",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string"}, "cars": {"type": "integer"}},
            "required": ["to"],
        },
    },
}
BOOKED = [
    {"name": "book_ferry", "arguments": {"to": "Juist", "cars": 2}},
    {"name": "book_ferry", "arguments": '{"to": "Sylt"}'},
]
BOOK = row("Two cars to Juist, and me to Sylt.", BOOKED, tools=json.dumps([FERRY]))
JUIST, SYLT = call("book_ferry", '{"cars": 2.0, "to": "Juist"}'), call("book_ferry", '{"to": "Sylt"}')
NOTHING = row("Only say hello.", [], tools=[FERRY])


async def test_calls_are_right_by_name_and_arguments_in_any_order(stages: Stages) -> None:
    suite = Suite(
        family="tool_call",
        oracle=[
            (BOOK, [JUIST + SYLT]),
            (BOOK, ["First the island.\n" + SYLT + JUIST]),
            ({**BOOK, "tools": ""}, [SYLT + JUIST]),
        ],
        hacks={
            "one is missing": (BOOK, [JUIST]),
            "one too many": (BOOK, [JUIST + SYLT + SYLT]),
            "another name": (BOOK, [JUIST + call("book_boat", '{"to": "Sylt"}')]),
            "another argument": (BOOK, [JUIST + call("book_ferry", '{"to": "Sylt", "cars": 0}')]),
            "true is not one": (BOOK, [SYLT + call("book_ferry", '{"to": "Juist", "cars": true}')]),
            "text beside what cannot be read": (BOOK, [JUIST + SYLT + "<tool_call>\n{book}\n</tool_call>"]),
            "only said": (BOOK, ["book_ferry(to='Juist', cars=2)"]),
            "a call where none was wanted": (NOTHING, [SYLT]),
        },
    )
    await held(suite, ToolCalls(), stages)


async def test_deep_arguments_are_wrong_and_no_failure_of_ours(stages: Stages) -> None:
    deep = '{"to": ' * 600 + "1" + "}" * 600
    _, score = await stages.rollout(ToolCalls(), BOOK, [call("book_ferry", deep)])
    assert score.reward == 0.0


async def test_the_functions_of_a_row_are_shown_and_not_run(stages: Stages) -> None:
    ran, score = await stages.rollout(ToolCalls(), BOOK, [JUIST + SYLT])
    assert ran.trajectory is not None
    [turn] = ran.trajectory.turns
    assert [each["function"]["name"] for each in ran.trajectory.tools] == ["book_ferry"]
    assert "book_ferry" in ran.trajectory.segments[0].prompt_text
    assert [name for name, _ in turn.client_calls] == ["book_ferry", "book_ferry"]
    assert (turn.tool_calls, ran.trajectory.stop_reason, ran.trajectory.truncated_by) == ([], "answer", None)
    assert score.parts == {"calls": 2.0, "expected": 2.0, "right": 2.0}
    assert (await stages.rollout(ToolCalls(), NOTHING, ["Hello."]))[1].reward == 1.0


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (row("?", "wombat"), "no list of calls with `name` and `arguments`"),
        (row("?", [{"name": "f", "arguments": [1]}]), "the arguments of 'f' in the row's answer are no object"),
        ({"prompt": asked("?")}, "the row has no answer"),
        (row("?", [], tools="[{}]"), "required field `name`"),
    ],
)
async def test_a_row_without_calls_is_named(stages: Stages, payload: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        await stages.rollout(ToolCalls(), payload, ["Hello."])


def told(*instructions: tuple[str, dict[str, Any]], text: str = "Write about ferries.") -> dict[str, Any]:
    names, arguments = [name for name, _ in instructions], [given for _, given in instructions]
    return row(text, {"instruction_id_list": names, "kwargs": arguments})


KEYS, LETTERS = "keywords:existence", "keywords:letter_frequency"
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    (KEYS, {"keywords": ["ferry"]}, "A ferry.", "A boat."),
    ("keywords:frequency", {"keyword": "sea", "frequency": 2, "relation": "at least"}, "Sea and sea.", "Sea."),
    ("keywords:forbidden_words", {"forbidden_words": ["boat"]}, "A ferry.", "A boat."),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 2, "let_relation": "at least"}, "zz", "z"),
    ("language:response_language", {"language": "de"}, "Die Fähre legt am Abend ab und kommt früh an.", "It leaves."),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"},
     "Dr. Low left at 5 p.m. today.", "One. Two. Three."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "one\n***\ntwo", "one"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "one two three", "one two"),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
     "First.\n\nThen more.", "First.\n\nMore."),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] at [time]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\n\nP.S. More.", "Bye."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* one\n* two", "* one"),
    ("detectable_format:constrained_response", {}, "My answer is yes.", "Perhaps."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "*this*", "this"),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
     "Section 1\na\nSection 2\nb", "a"),
    ("detectable_format:json_format", {}, '{"a": 1}', "a: 1"),
    ("detectable_format:title", {}, "<<Ferries>>\nText.", "Ferries"),
    ("combination:two_responses", {}, "one\n******\ntwo", "one"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write about ferries."}, "Write about ferries. So.", "So."),
    ("startend:end_checker", {"end_phrase": "Ahoy."}, "Text. Ahoy.", "Ahoy. Text."),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"},
     "ONE. TWO.", "ONE two"),
    ("change_case:english_capital", {}, "THE FERRY LEAVES IN THE EVENING.", "The ferry leaves."),
    ("change_case:english_lowercase", {}, "the ferry leaves in the evening.", "The ferry leaves."),
    ("punctuation:no_comma", {}, "No comma.", "One, two."),
    ("startend:quotation", {}, '"All of it."', "All of it."),
]  # fmt: skip


@pytest.fixture(scope="module")
def checks() -> Iterator[Forks]:
    """One process for all tests here: it takes seconds to start."""
    made = Forks("workers.handlers.prorl.instructions")
    yield made
    made.close()


@pytest.fixture
def if_eval(checks: Forks) -> IfEval:
    made = IfEval()
    made._checks = checks
    return made


async def test_every_instruction_of_ifeval_is_checked(stages: Stages, if_eval: IfEval) -> None:
    """Without a network: its own library would fetch what cuts sentences."""
    wrong: list[tuple[str, str]] = []
    for name, given, followed, broken in CASES:
        for answer, reward in ((followed, 1.0), (broken, 0.0)):
            score = await stages.score(if_eval, told((name, given)), {"answer": answer})
            wrong += [(name, answer)] if score.reward != reward else []
    assert wrong == []
    assert len({name for name, *_ in CASES}) == 25


@pytest.mark.parametrize(
    ("name", "given", "followed", "broken"),
    [
        (LETTERS, {"letter": "#", "let_frequency": 2, "let_relation": "at least"}, "#a #b", "abc" * 99),
        (LETTERS, {"letter": "É", "let_frequency": 1.0, "let_relation": "at least"}, "é", "e"),
        ("length_constraints:nth_paragraph_first_word",
         {"num_paragraphs": 2.0, "nth_paragraph": 2.0, "first_word": "then"},
         "First.\n\nThen more.", "First.\n\nMore."),
        ("language:response_language", {"language": "de"}, "Die Fähre legt am Abend ab.", "12345"),
    ],
)  # fmt: skip
async def test_no_score_of_an_instruction_is_chance_or_a_gift(
    stages: Stages, if_eval: IfEval, name: str, given: dict[str, Any], followed: str, broken: str
) -> None:
    """IFEval draws a letter for one that is none; a text of digits is in every language; tables hold 2.0 for 2."""
    said = [(await stages.score(if_eval, told((name, given)), {"answer": each})).reward for each in (followed, broken)]
    assert said == [1.0, 0.0]


async def test_all_instructions_of_a_row_must_be_followed(stages: Stages, if_eval: IfEval) -> None:
    both = told((KEYS, {"keywords": ["ferry"], "num_words": None}), ("punctuation:no_comma", {}))
    plain = {
        "question": "Write about ferries.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [None],
    }  # fmt: skip
    suite = Suite(
        family="if_eval",
        oracle=[(both, ["The ferry leaves."]), (plain, ["It leaves."])],
        hacks={"one of two": (both, ["The ferry, it leaves."]), "none": (both, ["A boat, it leaves."])},
    )
    await held(suite, if_eval, stages)
    _, score = await stages.rollout(if_eval, both, ["The ferry, it leaves."])
    assert score.parts == {"followed": 1.0, "instructions": 2.0}
    assert score.note == "not followed: punctuation:no_comma"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (told(("keywords:exist", {})), "IFEval has no instruction 'keywords:exist'; it has .*keywords:existence"),
        (told((KEYS, {})), r"the instruction 'keywords:existence' does not take \{\}: it lacks keywords"),
        (told((KEYS, {"keywords": "ferry"})), "keywords must be a list of words"),
        (told((KEYS, {"keywords": ["ferry", " "]})), "keywords must be a list of words"),
        (told(("length_constraints:number_words", {"num_words": -1, "relation": "at least"})), "draw another value"),
        (told((LETTERS, {"letter": "ab", "let_frequency": 1, "let_relation": "at least"})), "draw another value"),
        (told(), "the row names 0 instructions"),
        (row("?", {"instruction_id_list": [KEYS], "kwargs": []}), "has arguments of 0: one object each"),
        (row("?", 7), "required field `instruction_id_list`"),
    ],
)
async def test_a_row_whose_instructions_cannot_be_checked_is_named(
    stages: Stages, if_eval: IfEval, payload: dict[str, Any], reason: str
) -> None:
    """A missing argument would be drawn at random, and the answer be scored by chance."""
    with pytest.raises(BadRow, match=reason):
        await stages.score(if_eval, payload, {"answer": "The ferry."})


ENTRY = {"question": "What is 20 + 22?", "answer": "42", "metadata": {"difficulty": {}}}
SUM = {"entry": ENTRY, "reasoning_task": "chain_sum", "ground_truth": "42"}
GYM = {"prompt": asked("What is 20 + 22?"), "reward_model": SUM, "tools": False}
GYM_OLD = {
    **GYM,
    "reward_model": {"ground_truth": "42"},
    "extra_info": {"reward_model": {**SUM, "entry": json.dumps(ENTRY)}},
}


async def test_an_entry_that_a_row_brings_is_scored_by_its_data_set(stages: Stages) -> None:
    gym = GymEntries()
    suite = Suite(
        family="reasoning_gym_entry",
        oracle=[(GYM, ["<answer>42</answer>"]), (GYM_OLD, ["<answer>42</answer>"])],
        hacks={"wrong": (GYM, ["<answer>43</answer>"]), "what was asked": (GYM_OLD, ["20 + 22"])},
    )
    try:
        await held(suite, gym, stages)
        bad = {**GYM, "reward_model": {**SUM, "reasoning_task": "chain_summ"}}
        with pytest.raises(BadRow, match="no data set 'chain_summ'"):
            await stages.rollout(gym, bad, ["<answer>42</answer>"])
        with pytest.raises(BadRow, match=r"neither reward_model nor extra_info\.reward_model has entry"):
            await stages.rollout(gym, {**GYM, "reward_model": {"ground_truth": "42"}}, ["<answer>42</answer>"])
    finally:
        await gym.aclose()


GRID = {"question": "?", "answer": "1 2\n3 4", "metadata": {"output": [[1, 2], [3, 4]], "difficulty": {}}}
LADDER = {
    "question": "?",
    "answer": "STONE,STORE",
    "metadata": {"start_word": "STONE", "end_word": "STORE", "word_length": 5},
}


def brings(task: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {
        **GYM,
        "reward_model": {"entry": json.dumps(entry), "reasoning_task": task, "ground_truth": entry["answer"]},
    }


async def test_an_entry_whose_own_answer_earns_nothing_gives_no_reward(stages: Stages) -> None:
    """Boards come as lists and are compared as tuples: each right answer earned 0.05."""
    gym = GymEntries()
    try:
        for task in ("arc_agi", "rearc"):
            said = [
                (await stages.score(gym, brings(task, GRID), {"answer": each})).reward for each in ("1 2\n3 4", "1 2")
            ]
            assert said == [1.0, 0.05]
        damaged = {**GRID, "metadata": {"output": [[9]]}}
        for task, entry in (("arc_agi", damaged), ("word_ladder", LADDER)):  # the second: of words of another length
            with pytest.raises(BadRow, match="takes no text"):
                await stages.score(gym, brings(task, entry), {"answer": entry["answer"]})
    finally:
        await gym.aclose()


async def test_an_answer_without_a_box_is_judged(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    light = row("How fast is light?", "300000 kilometres each second", tools=False)
    judged = Stem()
    judged.data_sources = (UNBOXED,)
    async with judging(monkeypatch) as bodies:
        rewards = [
            (await stages.rollout(judged, light, [text]))[1].reward
            for text in ("<answer>3e8 m/s</answer>", "<answer>slow</answer>", "")
        ]
    assert rewards == [1.0, 0.0, 0.0]
    assert len(bodies) == 2


async def test_rows_of_rstar_are_programs(stages: Stages) -> None:
    tests = {"inputs": ["1 2\n", "40 2\n"], "outputs": ["3\n", "42\n"]}
    added = row("Add two numbers.", tests, tools=False)
    assert "rStar" in Code().data_sources
    right, wrong = ("```python\nprint(sum(map(int, input().split())))\n```", "```python\nprint(3)\n```")
    assert [(await stages.rollout(Code(), added, [text]))[1].reward for text in (right, wrong)] == [1.0, 0.0]
