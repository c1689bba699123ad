"""Tools in words, for models whose chat template has no place for them (the Hermes format)."""

import itertools
import json
from collections.abc import Sequence

import msgspec

from workers.agent.tools import Tool

END_RESPONSE = "</tool_response>"
EXAMPLE = '<tool_call>\n{"name": "NAME", "arguments": {"PARAMETER": "VALUE"}}\n</tool_call>'


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message that the environment adds. What the model samples is ids, never this."""

    role: str  # system, user, tool; assistant only in a prompt's worked examples, or when a history is compacted
    content: str


def described(messages: Sequence[Message], tools: Sequence[Tool], example: str = EXAMPLE) -> list[Message]:
    """The same messages with the tools in the first one, which should be the system's. `example`: of a call."""
    if not tools or not messages:
        return list(messages)
    first = messages[0]
    if first.role != "system":
        return [Message(role="system", content=describe(tools, example)), *messages]
    return [Message(role="system", content=f"{first.content}\n\n{describe(tools, example)}"), *messages[1:]]


def from_user(messages: Sequence[Message]) -> list[Message]:
    """The same messages with tool results as messages of the user's, for templates that know no role `tool`."""
    told: list[Message] = []
    for are_results, run in itertools.groupby(messages, key=lambda message: message.role == "tool"):
        if are_results:
            results = [f"<tool_response>\n{message.content}\n{END_RESPONSE}" for message in run]
            told.append(Message(role="user", content="\n".join(results)))
        else:
            told.extend(run)
    return told


def describe(tools: Sequence[Tool], example: str = EXAMPLE) -> str:
    """A line per tool, and how a call is written."""
    lines = [json.dumps({"name": tool.name, "parameters": _brief(tool)}) + f" {tool.description}" for tool in tools]
    return "Tools:\n" + "\n".join(lines) + f"\nTo call a tool, write\n{example}"


def _brief(tool: Tool) -> dict[str, str]:
    schema = tool.parameters
    properties = schema.get("properties", {})
    return {name: properties.get(name, {}).get("type", "string") for name in schema.get("required", ())}
