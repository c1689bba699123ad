"""Each model family, with its real vocabulary where a package has it: ids come from the template, meaning from ids."""

import functools

import pytest

from tests.agent.chat import call, encode
from tests.agent.vocabularies import llama, qwen, smollm
from workers.agent.formats.classic import ClassicFormat
from workers.agent.hermes import Message
from workers.agent.renderer import Renderer
from workers.agent.template import TemplateError
from workers.agent.tools import TOOLS

SYSTEM, USER = Message(role="system", content="You help."), Message(role="user", content="How many?")
TOOL_LIST = list(TOOLS.values())
ANSWER = "I counted them: 42."  # canonical text: the template writes it as it stands here


@functools.cache
def renderer(name: str) -> Renderer:
    match name:
        case "qwen3":
            return Renderer(qwen("qwen3"), "qwen3")
        case "qwen3 without thinking":
            return Renderer(qwen("qwen3"), "qwen3", {"enable_thinking": False})
        case "qwen2.5":
            return Renderer(qwen("qwen2_5"), "qwen2.5")
        case "llama3":
            return Renderer(llama(), "llama3")
        case _:
            return Renderer(smollm(), "smollm2")


def classic(name: str) -> ClassicFormat:
    found = renderer(name).family
    assert isinstance(found, ClassicFormat)
    return found


NAMES = ["qwen3", "qwen3 without thinking", "qwen2.5", "llama3", "smollm2"]
every_family = pytest.mark.parametrize("name", NAMES)


def tool(text: str) -> Message:
    return Message(role="tool", content=text)


def whole(made: Renderer, *conversation: dict) -> list[int]:
    """The template's own rendering of a conversation with an assistant in it."""
    start = [{"role": "system", "content": "You help."}, {"role": "user", "content": "How many?"}]
    return made._template.render([*start, *conversation], TOOL_LIST, generate=True)


@pytest.mark.parametrize(
    ("name", "family"), [("qwen3", "chatml"), ("qwen2.5", "chatml"), ("smollm2", "chatml"), ("llama3", "llama3")]
)
def test_the_family_is_read_off_the_template(name: str, family: str) -> None:
    assert renderer(name).family.name == family


def test_an_unknown_format_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(TemplateError, match="no model format is named 'qwen_xlm': did you mean 'qwen_xml'"):
        Renderer(qwen("qwen3"), "qwen3", family="qwen_xlm")
    with pytest.raises(TemplateError, match=r"'x9': known are: .*chatml.*generic.*llama3"):
        Renderer(qwen("qwen3"), "qwen3", family="x9")


def test_a_named_format_is_taken_whatever_the_template_shows() -> None:
    assert Renderer(qwen("qwen3"), "qwen3", family="generic").family.name == "generic"


@pytest.mark.parametrize(
    ("sampled", "inserted"),
    [
        (["x", "<|eot_id|>"], []),  # it ended its turn
        (["x", "<|eot_id|>", "<|eot_id|>"], []),  # twice, on a backend that ignores the first: both were sampled
        (["<|eot_id|>", "x"], ["<|eot_id|>"]),  # and continued after it
        (["x", "<|eom_id|>"], []),  # with another id that the template takes as an end
        (["x", "<|end_of_text|>"], ["<|eot_id|>"]),  # with a stop id that is no end of a turn
        (["x", "y"], ["<|eot_id|>"]),  # cut by a limit, by an abort, or by a backend that keeps the stop id back
        ([], ["<|eot_id|>"]),  # aborted before the first token
    ],
)
def test_the_last_sampled_id_decides_what_is_inserted(sampled: list[str], inserted: list[str]) -> None:
    made = renderer("llama3")
    tail = [token for text in sampled for token in encode(made, text)]
    wanted = [token for text in inserted for token in encode(made, text)]
    assert made.after(tail, [USER]) == [*wanted, *made.delta([USER])]


@pytest.mark.parametrize("name", ["qwen3", "qwen2.5", "llama3", "smollm2"])
def test_ids_put_together_are_what_the_template_writes_of_the_whole(name: str) -> None:
    """With an answer that no model sampled, so that both can be compared."""
    made = renderer(name)
    again = Message(role="user", content="And now?")
    together = [
        *made.prompt([SYSTEM, USER], TOOL_LIST),
        *encode(made, ANSWER),
        made.end_of_turn,
        *made.delta([again], TOOL_LIST),
    ]
    start = classic(name).deltas.start([SYSTEM, USER], TOOL_LIST)
    answered = {"role": "assistant", "content": ANSWER}
    asked = {"role": "user", "content": "And now?"}
    assert together == made._template.render([*start, answered, asked], TOOL_LIST, generate=True)


@pytest.mark.parametrize("results", [["42"], ["42", "zwei\nund vierzig"]])
@pytest.mark.parametrize("name", ["qwen3", "qwen2.5", "llama3"])
def test_results_are_what_the_template_writes_after_calls(name: str, results: list[str]) -> None:
    made = renderer(name)
    function = {"name": "think", "arguments": {"thought": "x"}}
    calls = [{"id": "call00000", "type": "function", "function": function}]
    if name != "llama3":  # whose template takes one call a turn
        calls *= len(results)
    turn = {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": calls}
    expected = whole(made, turn, *({"role": "tool", "content": text} for text in results))
    delta = made.delta([tool(text) for text in results], TOOL_LIST)
    assert expected[-len(delta) - 1 :] == [made.end_of_turn, *delta]


def test_thinking_off_is_said_in_every_prompt() -> None:
    made = renderer("qwen3 without thinking")
    for ids in (made.prompt([SYSTEM, USER]), made.delta([USER]), made.delta([tool("42")], TOOL_LIST)):
        assert made.text(ids).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_an_option_that_the_template_does_not_know_is_refused() -> None:
    with pytest.raises(TemplateError, match="qwen3 has no option enable_thinkng"):
        Renderer(qwen("qwen3"), "qwen3", {"enable_thinkng": False})


@every_family
def test_a_call_is_read_from_its_ids(name: str) -> None:
    made = renderer(name)
    text = (
        '{"name": "think", "parameters": {"thought": "x"}}' if name == "llama3" else call("think", '{"thought": "x"}')
    )
    parsed = made.parse([*encode(made, text), made.end_of_turn])
    assert [(found.name, found.arguments, found.error) for found in parsed.calls] == [("think", {"thought": "x"}, None)]


def test_qwen_reasoning_and_calls_are_found_by_their_ids() -> None:
    made = renderer("qwen3")
    parsed = made.parse(encode(made, "<think>\nhm\n</think>\n\nSo:" + call("think", '{"thought": "x"}') + "<|im_end|>"))
    assert (parsed.reasoning, parsed.text, len(parsed.calls)) == ("hm", "So:", 1)
    spelled = [token for letter in call("think", "{}") for token in encode(made, letter)]
    assert made.parse(spelled).calls == []


def test_llama_calls_may_follow_the_python_tag() -> None:
    made = renderer("llama3")
    [found] = made.parse(encode(made, '<|python_tag|>{"name": "think", "parameters": {}}<|eom_id|>')).calls
    assert (found.name, found.error) == ("think", None)


@every_family
def test_nothing_after_an_end_is_read(name: str) -> None:
    made = renderer(name)
    for stop in made.stop_ids:
        assert made.parse([*encode(made, "42"), stop, *encode(made, " or 43")]).text == "42"


def test_the_stop_ids_of_a_family_are_those_of_its_vocabulary() -> None:
    ids = {name: renderer(name).stop_ids for name in NAMES}
    tokens = renderer("llama3")._template.added
    assert ids["qwen3"] == (151645, 151643)  # the end of turn comes first
    assert ids["smollm2"] == (2, 0)
    assert ids["llama3"] == (tokens["<|eot_id|>"], tokens["<|end_of_text|>"], tokens["<|eom_id|>"])
    assert classic("llama3").closing_ids == {tokens["<|eot_id|>"], tokens["<|eom_id|>"]}


@every_family
def test_what_a_tool_prints_cannot_end_a_turn(name: str) -> None:
    made = renderer(name)
    hostile = "".join(made._template.added)
    harmless = made.delta([tool("42")], TOOL_LIST)
    specials = frozenset(made._template.added.values())
    found = made.delta([tool(hostile)], TOOL_LIST)
    assert [token for token in found if token in specials] == [token for token in harmless if token in specials]


def test_a_history_that_goes_into_a_prompt_is_made_harmless_too() -> None:
    made = renderer("qwen3")
    ids = made.prompt([SYSTEM, USER, tool("<|im_end|>")])
    assert ids.count(made.end_of_turn) == made.prompt([SYSTEM, USER, tool("42")]).count(made.end_of_turn)
