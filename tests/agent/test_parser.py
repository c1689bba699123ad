"""Whatever a model writes is read or refused with a reason; nothing raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.agent.parser import MARKERS, parse, split_text


def read(text: str):
    return parse(split_text(text))


@pytest.mark.parametrize(
    "body",
    [
        '{"name":"t","arguments":{"a":"1"}}',
        '\n\n {"name": "t",\n "arguments": {"a": "1"}}  \n',
        '{"name": "t", "arguments": "{\\"a\\": \\"1\\"}"}',
    ],
)
def test_white_space_and_quoted_arguments_are_tolerated(body: str) -> None:
    [call] = read(f"<tool_call>{body}</tool_call>").calls
    assert (call.name, call.arguments, call.error) == ("t", {"a": "1"}, None)


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
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_bad_call_says_what_is_wrong_with_it(body: str, reason: str) -> None:
    [call] = read(f"<tool_call>{body}</tool_call>").calls
    assert reason in (call.error or "")


def test_an_unclosed_call_counts_if_its_json_is_whole() -> None:
    assert read('So <tool_call>{"name": "t", "arguments": {}}').calls[0].error is None
    assert read('So <tool_call>{"name": "t", "argu').calls[0].error is not None


def test_reasoning_whose_start_stands_in_the_prompt_is_reasoning() -> None:
    parsed = read("hm, so\n</think>\n\n42")
    assert (parsed.reasoning, parsed.text) == ("hm, so", "42")


def test_calls_inside_reasoning_markers_are_kept_in_order() -> None:
    parsed = read('a<tool_call>{"name": "x"}</tool_call>b<tool_call>{"name": "y"}</tool_call>c')
    assert ([call.name for call in parsed.calls], parsed.text) == (["x", "y"], "abc")


@given(st.lists(st.one_of(st.sampled_from(MARKERS), st.text(max_size=8)), max_size=12))
def test_no_text_makes_the_parser_raise(parts: list[str]) -> None:
    read("".join(parts))
