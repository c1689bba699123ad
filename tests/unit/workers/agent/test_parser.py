"""Whatever a model writes is read or refused with a reason; nothing raises."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.agent.calls import Call
from workers.agent.formats.hermes_calls import HERMES
from workers.agent.formats.llama_calls import LLAMA
from workers.agent.formats.registry import BUILT_IN
from workers.agent.parser import END_THINK, THINK, Parsed, parse, split_text

MARKERS = (THINK, END_THINK, *HERMES.markers)


def read(text: str, *, opened: bool = False) -> Parsed:
    return parse(split_text(text, MARKERS), HERMES, opened=opened)


def llama(text: str) -> Parsed:
    return parse(split_text(text, (THINK, END_THINK, *LLAMA.markers)), LLAMA)


def good(calls: list[Call]) -> list[tuple[str, dict]]:
    assert [call.error for call in calls] == [None] * len(calls)
    return [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize(
    "body",
    [
        '{"name":"t","arguments":{"a":"1"}}',
        '\n\n {"name": "t",\n "arguments": {"a": "1"}}  \n',
        '{"name": "t", "arguments": "{\\"a\\": \\"1\\"}"}',
    ],
)
def test_white_space_and_quoted_arguments_are_tolerated(body: str) -> None:
    assert good(read(f"<tool_call>{body}</tool_call>").calls) == [("t", {"a": "1"})]


def test_raw_line_breaks_in_strings_are_tolerated() -> None:
    [call] = read('<tool_call>{"name": "t", "arguments": {"code": "a\nb"}}</tool_call>').calls
    assert call.arguments == {"code": "a\nb"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{", "not valid JSON"),
        ('{"name": "t"}}', "not valid JSON"),
        ("[1]", "not a list"),
        ('{"arguments": {}}', '"name" must be a string'),
        ('{"name": "t", "arguments": [1]}', '"arguments" must be an object'),
        ('{"name": "\\ud800", "arguments": {}}', "whole characters"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_bad_call_says_what_is_wrong_with_it(body: str, reason: str) -> None:
    [call] = read(f"<tool_call>{body}</tool_call>").calls
    assert reason in (call.error or "")


def test_an_unclosed_call_counts_if_its_json_is_whole() -> None:
    assert read('So <tool_call>{"name": "t", "arguments": {}}').calls[0].error is None
    assert read('So <tool_call>{"name": "t", "argu').calls[0].error is not None


def test_an_end_of_a_call_that_never_began_is_a_bad_call() -> None:
    [call] = read('{"name": "t", "arguments": {}}</tool_call>').calls
    assert "without a <tool_call>" in (call.error or "")


def test_reasoning_whose_start_stands_in_the_prompt_is_reasoning() -> None:
    parsed = read("hm, so\n</think>\n\n42")
    assert (parsed.reasoning, parsed.text) == ("hm, so", "42")


def test_reasoning_that_the_prompt_opened_and_a_limit_cut_is_no_answer() -> None:
    parsed = read("hm, it may be 41", opened=True)
    assert (parsed.reasoning, parsed.text) == ("hm, it may be 41", "")


def test_a_call_that_is_only_thought_of_is_not_run() -> None:
    parsed = read('<think>I could <tool_call>{"name": "x"}</tool_call></think>No.')
    assert (parsed.calls, parsed.text) == ([], "No.")


def test_a_call_ends_reasoning_that_nothing_else_ends() -> None:
    parsed = read('<think>I will<tool_call>{"name": "x"}</tool_call>')
    assert (parsed.reasoning, [call.name for call in parsed.calls]) == ("I will", ["x"])


def test_reasoning_may_come_more_than_once() -> None:
    parsed = read("<think>a</think>b<think>c</think>d")
    assert (parsed.reasoning, parsed.text) == ("ac", "bd")


def test_calls_are_kept_in_order() -> None:
    parsed = read('a<tool_call>{"name": "x"}</tool_call>b<tool_call>{"name": "y"}</tool_call>c')
    assert ([call.name for call in parsed.calls], parsed.text) == (["x", "y"], "abc")


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "t", "parameters": {"a": "1"}}',
        '{"type": "function", "name": "t", "parameters": {"a": "1"}}',
        '<|python_tag|>{"name": "t", "arguments": {"a": "1"}}',
        '[t(a="1")]',
        '<|python_tag|>[t(a="1")]',
    ],
)
def test_llama_calls_are_read_in_each_form(text: str) -> None:
    assert good(llama(text).calls) == [("t", {"a": "1"})]


def test_several_llama_calls_share_a_turn() -> None:
    json_calls = '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}'
    assert good(llama(json_calls).calls) == [("a", {}), ("b", {})]
    assert good(llama("[a(x=1, y=[true, None]), b.c(z={'k': -1})]").calls) == [
        ("a", {"x": 1, "y": [True, None]}),
        ("b.c", {"z": {"k": -1}}),
    ]


def test_text_before_the_tag_is_text() -> None:
    parsed = llama('Let me see.<|python_tag|>{"name": "t", "parameters": {}}')
    assert (parsed.text, good(parsed.calls)) == ("Let me see.", [("t", {})])


@pytest.mark.parametrize("text", ['{"name": "Ann", "age": 3}', "[1, 2]", '{"answer": 42}', "{x | x > 0}", "42"])
def test_a_message_that_is_no_call_is_an_answer(text: str) -> None:
    assert llama(text) == Parsed(text=text, reasoning="", calls=[])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"name": "t", "param', "nothing but JSON"),
        ('{"name": "t", "parameters": {}} I hope', "nothing but JSON"),
        ('{"name": "t", "parameters": 3}', '"parameters" must be an object'),
        ("<|python_tag|>print(1)", "nothing but JSON"),
        ("<|python_tag|>", "nothing but JSON"),
        ("[t(1)]", "name each argument of t"),
        ("[t(a=b)]", "must be literals"),
        ("[t(a={1})]", "plain JSON"),
        ("[t(a=1), 2]", "2 is no call"),
        ("[t()()]", "t()() is no call"),
        ("[t" + "()" * 900 + "]", "is no call"),
        ("[" + "t" + ".t" * 900 + "(1)]", "name each argument"),
        ("<|python_tag|>[(" + "lambda:" * 60 + "t)()]", "is no call"),
        ("[t(a=1), (", "Python, and this is not"),
        ("[t(a=" + "(" * 5000 + "]", "Python, and this is not"),
    ],
)
def test_a_bad_llama_call_says_what_is_wrong_with_it(text: str, reason: str) -> None:
    assert reason in (llama(text).calls[-1].error or "")


@pytest.mark.slow
def test_a_llama_message_of_many_calls_takes_no_longer_for_each() -> None:
    calls = llama("[" + ", ".join(['t(a="é")'] * 50_000) + ", 2]").calls
    assert good(list(calls[:-1])) == [("t", {"a": "é"})] * 50_000
    assert (calls[1].source, calls[-1].source) == ('t(a="é")', "2")


PARTS = st.one_of(
    st.sampled_from([*MARKERS, *LLAMA.markers, '{"name": "t", ', '"parameters": {', "[t(a=", "'\\ud800'", "}", ")]"]),
    st.sampled_from([marker for each in BUILT_IN for marker in each.calls.markers]),
    st.sampled_from(
        ["<function=f>", "<parameter=p>", "</parameter>", "</function>", "call:f{", "to=functions.f", "k:"]
    ),
    st.sampled_from(["[f", "()", "[0]", "lambda: ", ".b", "(", "-", " if f else "]).map(lambda part: part * 300),
    st.text(max_size=8),
)


@given(st.lists(PARTS, max_size=12), st.booleans())
def test_no_text_makes_a_parser_raise_or_gives_what_cannot_be_stored(parts: list[str], opened: bool) -> None:
    for family in BUILT_IN:
        pieces = split_text("".join(parts), (*family.think, *family.calls.markers))
        msgspec.msgpack.encode(parse(pieces, family.calls, opened=opened, think=family.think))
