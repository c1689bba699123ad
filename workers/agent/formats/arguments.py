"""Types of arguments that a format writes as plain text: from the schema of the tool that is called."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workers.agent.calls import Call, made
from workers.agent.tools import Tool

_WORDS: Mapping[str, Any] = {"True": True, "False": False, "None": None}  # as templates write them by `| string`


def typed(call: Call, tools: Sequence[Tool]) -> Call:
    """The call with what its tool does not take as a string read as JSON; what cannot be read so stays a string."""
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if call.error is not None or tool is None:
        return call
    listed = tool.parameters.get("properties")
    properties = listed if isinstance(listed, Mapping) else {}
    arguments = {name: _value(value, properties.get(name)) for name, value in call.arguments.items()}
    return made(call.name, arguments, call.source)


def _value(value: Any, spec: object) -> Any:
    if not isinstance(value, str) or not isinstance(spec, Mapping) or "string" in _kinds(spec):
        return value
    text = value.strip()
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return value


def _kinds(spec: Mapping[str, Any]) -> set[str]:
    """The types that a schema allows; `string` where it does not say."""
    kind = spec.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {each for each in kind if isinstance(each, str)}
    choices = spec.get("anyOf") or spec.get("oneOf")
    if isinstance(choices, list):
        return {kind for choice in choices if isinstance(choice, Mapping) for kind in _kinds(choice)} or {"string"}
    return {"string"}
