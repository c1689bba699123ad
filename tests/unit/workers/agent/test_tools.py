"""A call that cannot be run is answered with what is wrong; it never raises and never runs half."""

import pytest

from workers.agent.tools import (
    MAX_OUTPUT_CHARS,
    TOOLS,
    Refused,
    Tool,
    ToolAnswer,
    ToolContext,
    call_tool,
    capped,
    select,
)

CONTEXT = ToolContext(sandbox=None, timeout_s=1.0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "arguments", "refused", "reason"),
    [
        ("bash", {}, Refused.UNKNOWN_TOOL, "there is no tool 'bash'. The tools are: execute_bash"),
        ("think", {}, Refused.WRONG_ARGUMENTS, "missing required field `thought`"),
        ("think", {"thought": 3}, Refused.WRONG_ARGUMENTS, "Expected `str`, got `int` - at `$.thought`"),
        ("think", {"thought": "x", "mood": "y"}, Refused.WRONG_ARGUMENTS, "unknown field `mood`"),
        ("think", {"thought": "x" * 300_000}, Refused.TOO_LARGE, "at most 262144"),
        ("execute_bash", {"command": "ls", "timeout": -1}, Refused.WRONG_ARGUMENTS, "Expected `float` > 0"),
        (
            "str_replace_editor", {"command": "delete", "path": "/x"}, Refused.WRONG_ARGUMENTS,
            "Invalid enum value 'delete'",
        ),
        (
            "str_replace_editor", {"command": "view", "path": "/x", "view_range": [1]}, Refused.WRONG_ARGUMENTS,
            "view_range is [first, last]",
        ),
    ],
)  # fmt: skip
async def test_a_wrong_call_is_refused_with_the_reason(
    name: str, arguments: dict, refused: Refused, reason: str
) -> None:
    answer = await call_tool(list(TOOLS.values()), name, arguments, CONTEXT)
    assert answer.refused == refused
    assert reason in answer.text


@pytest.mark.anyio
async def test_finish_ends_with_its_message() -> None:
    answer = await call_tool(select(["finish"]), "finish", {"message": "42", "task_completed": "true"}, CONTEXT)
    assert (answer.text, answer.final, answer.ok) == ("42", True, True)


@pytest.mark.anyio
async def test_a_tool_that_is_not_offered_does_not_exist() -> None:
    assert (await call_tool(select(["finish"]), "think", {"thought": "x"}, CONTEXT)).refused


def test_long_output_keeps_head_and_tail_and_says_what_is_gone() -> None:
    text = capped("a" * MAX_OUTPUT_CHARS + "b" * MAX_OUTPUT_CHARS)
    assert text.startswith("aaa")
    assert text.endswith("bbb")
    assert f"[... {MAX_OUTPUT_CHARS} characters left out ...]" in text


def test_every_schema_is_an_object_with_described_parameters() -> None:
    for tool in TOOLS.values():
        schema = tool.schema()["function"]["parameters"]
        assert schema["type"] == "object"
        for name, spec in schema["properties"].items():
            assert "description" in spec, (
                f"{tool.name}: give {name} a description: Annotated[..., Meta(description=...)]"
            )
            assert "type" in spec or "enum" in spec


def test_an_unknown_tool_name_of_a_family_lists_the_known() -> None:
    with pytest.raises(LookupError, match="no tool is named browser; there are execute_bash"):
        select(["browser"])


async def _add(_: ToolContext, arguments: dict) -> ToolAnswer:
    return ToolAnswer(text=str(arguments["a"] + arguments.get("b", 0)))


ADD = Tool(
    name="add",
    description="Adds.",
    arguments={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    run=_add,
    max_argument_bytes=64,
)


HOSTILE = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "pattern": "^(a+)+$"},
        "b": {"$ref": "file:///etc/hostname"},
        "c": 3,
        "d": {"type": {}},
    },
    "patternProperties": {"^(d+)+$": {}},
    "required": ["a", {}],
}


@pytest.mark.anyio
async def test_a_strangers_schema_can_neither_hang_nor_fetch() -> None:
    async def echo(_: ToolContext, arguments: dict) -> ToolAnswer:
        return ToolAnswer(text=" ".join(arguments))

    tool = Tool(name="echo", description="Echoes.", arguments=HOSTILE, run=echo)
    arguments = {"a": "a" * 64 + "!", "b": 1, "c": 2, "d": 3, "d" * 64 + "!": 0}
    assert not (await call_tool([tool], "echo", arguments, CONTEXT)).refused
    assert (await call_tool([tool], "echo", {"a": 1}, CONTEXT)).refused


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"a": 2, "b": 3}, "5"),
        ({"b": 3}, "'a' is a required property"),
        ({"a": "2"}, "'2' is not of type 'integer' - at `$.a`"),
        ({"a": 2, "c": 1}, "there is no property 'c'"),
        ({"a": 2, "b": 10**80}, "at most 64 are taken"),
    ],
)
async def test_a_tool_that_brings_its_own_schema_is_checked_against_it(arguments: dict, text: str) -> None:
    answer = await call_tool([ADD], "add", arguments, CONTEXT)
    assert text in answer.text
    assert (answer.refused is None) == (text == "5")
