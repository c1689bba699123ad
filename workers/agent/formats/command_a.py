"""Command-A: a JSON list of numbered calls in `<|START_ACTION|>`; results carry the number of their call."""

import json
from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from workers.agent.calls import Call, CallFormat, Piece, bad, from_object
from workers.agent.formats.interface import Model
from workers.agent.formats.sections import sections
from workers.agent.formats.turns import TurnFormat
from workers.agent.template import Conversation

_ACTION, _END_ACTION = "<|START_ACTION|>", "<|END_ACTION|>"
_RESPONSE, _END_RESPONSE = "<|START_RESPONSE|>", "<|END_RESPONSE|>"
_EXAMPLE = f'{_ACTION}[{{"tool_call_id": "0", "tool_name": "tool", "parameters": {{}}}}]{_END_ACTION}'
_MAX_EARLIER: Final = 500


def read(pieces: Sequence[Piece]) -> tuple[str, list[Call]]:
    """The response, and the calls of all actions."""
    kept = [piece for piece in pieces if piece not in ((True, _RESPONSE), (True, _END_RESPONSE))]
    text, actions = sections(kept, _ACTION, _END_ACTION)
    return text, [call for action in actions for call in _calls(action.strip())]


def _calls(source: str) -> list[Call]:
    try:
        values = json.loads(source, strict=False)
    except (ValueError, RecursionError) as error:
        return [bad(source, f"an action is a JSON list, and this is not valid JSON ({error}). Write {_EXAMPLE}")]
    if not isinstance(values, list) or not values:
        return [bad(source, f"an action is a list of calls. Write {_EXAMPLE}")]
    return [_call(value) for value in values]


def _call(value: object) -> Call:
    if not isinstance(value, dict):
        return bad(json.dumps(value), f"a tool call is a JSON object. Write {_EXAMPLE}")
    named = {"name": value.get("tool_name"), "parameters": value.get("parameters", {})}
    call = from_object(named, json.dumps(value), _EXAMPLE)
    given = value.get("tool_call_id")
    return msgspec.structs.replace(call, call_id=given) if isinstance(given, str) else call


class CommandA(TurnFormat):
    """Command-A's turns, which all end with `<|END_OF_TURN_TOKEN|>`."""

    name = "command_a"
    calls: ClassVar[CallFormat] = CallFormat(
        name="command_a", markers=(_ACTION, _END_ACTION, _RESPONSE, _END_RESPONSE), read=read
    )
    think = ("<|START_THINKING|>", "<|END_THINKING|>")
    ends = ("<|END_OF_TURN_TOKEN|>",)
    stops = ("<|END_OF_TURN_TOKEN|>",)

    @classmethod
    def fits(cls, model: Model) -> bool:
        return model.shows("<|CHATBOT_TOKEN|>", _ACTION, "tool_calls")

    def before(self, calls: Sequence[Call]) -> Conversation:
        """As many earlier calls as the model counted: results are numbered through the conversation."""
        given = calls[0].call_id if calls else ""
        count = min(int(given), _MAX_EARLIER) if given.isascii() and given.isdigit() else 0
        if not count:
            return []
        earlier = [self.call("unknown", f"earlier{place}") for place in range(count)]
        asked = {"role": "user", "content": "And you?"}
        return [asked, {"role": "assistant", "content": "", "tool_calls": earlier}]
