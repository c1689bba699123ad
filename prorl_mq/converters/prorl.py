"""ProRL Agent v1: the `messages[]` of a `/process` answer.

The `token_ids` of all messages, one after the other, are the last message's `input_ids` and `token_ids`. The first is
never the assistant's, the last one always. `input_ids` is quadratic, and v1's own trainer client does not read it.

| field | from |
|---|---|
| before the assistant's first | the messages of the prompt; the last one has all of its ids, the others none |
| assistant: token_ids, logprobs | the turn's sampled tokens |
| assistant: input_ids | the segment's prompt and its response up to the turn |
| assistant: content | what the completion says: its thought in `<think>`, then its text, without calls and markers |
| assistant: tool_calls | its calls that could be read, run or not |
| tool: token_ids | all that stands between two completions; user, where no tool was called |
| tool: content | what the tools printed; user: what the environment replied |

Ids cannot say where one message of a prompt ends; v1 itself gives them to the last message, for tasks of one turn. A
prompt with worked answers stays one message of text: a client takes the first message of an assistant for sampled.

v1 knows no segments: a client gets the last one, whose prompt is what was left of the history.
"""

from typing import Any

from prorl_mq.converters.rollout import Piece, pieces
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.trajectory import Segment, Trajectory, Turn

Message = dict[str, Any]


def messages(trajectory: Trajectory, *, segment: int | None = None, input_ids: bool = True) -> list[Message]:
    """The messages of one segment: by default the last in which the policy sampled a token. Raises `NotTrainable`."""
    sampled = [number for number, each in trajectory.of_model("") if each.spans]
    if not sampled:
        raise NotTrainable("no token was sampled in this trajectory: it has no messages")
    number = sampled[-1] if segment is None else segment
    chosen = trajectory.segments[number]
    answers = pieces(trajectory, number)
    shared = chosen.response_ids[: answers[0].start]  # by another sample, of which this one is a fork
    found = _prompt(chosen, [*chosen.prompt_ids, *shared])
    before: Piece | None = None
    for piece in answers:
        if before is not None and piece.start > before.end:
            found.append(_environment(chosen, before, piece))
        found.append(_assistant(chosen, piece, input_ids=input_ids))
        before = piece
    return found


def _prompt(segment: Segment, ids: list[int]) -> list[Message]:
    told = [(each.role, each.content) for each in segment.messages]
    if not told or any(role == "assistant" for role, _ in told):
        told = [("user", segment.prompt_text)]
    *first, (role, content) = told
    return [*(_message(*each, []) for each in first), _message(role, content, ids)]


def _assistant(segment: Segment, piece: Piece, *, input_ids: bool) -> Message:
    made = {
        "role": "assistant",
        "content": _said(piece.turn),
        "tool_calls": [{"name": name, "arguments": arguments} for name, arguments in _calls(piece.turn) if name],
        "token_ids": list(segment.response_ids[piece.start : piece.end]),
        "logprobs": list(segment.logprobs[piece.start : piece.end]),
    }
    if input_ids:
        made["input_ids"] = [*segment.prompt_ids, *segment.response_ids[: piece.start]]
    return made


def _said(turn: Turn) -> str:
    if turn.content is None:  # of an older record
        return turn.text
    return f"<think>\n{turn.reasoning}\n</think>\n\n{turn.content}" if turn.reasoning else turn.content


def _calls(turn: Turn) -> list[tuple[str, str]]:
    return [*((call.name, call.arguments) for call in turn.tool_calls), *turn.client_calls]


def _environment(segment: Segment, before: Piece, after: Piece) -> Message:
    printed = "\n".join(call.result for call in before.turn.tool_calls) or before.turn.reply
    role = "tool" if before.turn.tool_calls else "user"
    return _message(role, printed, segment.response_ids[before.end : after.start])


def _message(role: str, content: str, token_ids: Any) -> Message:
    return {"role": role, "content": content, "token_ids": list(token_ids), "logprobs": None, "input_ids": None}
