"""ProRL Agent v1: the `messages[]` of a `/process` answer.

The `token_ids` of all messages, one after the other, are the last message's `input_ids` and `token_ids`. The first is
never the assistant's, the last one always. `input_ids` is quadratic, and v1's own trainer client does not read it.

| field | from |
|---|---|
| first message | the whole first prompt, system message and question together: ids cannot say where one ends |
| assistant: token_ids, logprobs | the turn's sampled tokens |
| assistant: input_ids | the segment's prompt and its response up to the turn |
| assistant: content | the completion as people read it |
| assistant: tool_calls | its calls that could be read |
| tool: token_ids | all that stands between two completions; user, where no tool was called |
| tool: content | what the tools printed; user: what the environment replied |

v1 knows no segments: a client gets the last one, whose prompt is what was left of the history.
"""

from typing import Any

from prorl_mq.converters.rollout import Piece, pieces
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.trajectory import Segment, Trajectory

Message = dict[str, Any]


def messages(trajectory: Trajectory, *, segment: int | None = None, input_ids: bool = True) -> list[Message]:
    """The messages of one segment: by default the last in which a token was sampled. Raises `NotTrainable`."""
    sampled = [number for number, each in enumerate(trajectory.segments) if each.spans]
    if not sampled:
        raise NotTrainable("no token was sampled in this trajectory: it has no messages")
    number = sampled[-1] if segment is None else segment
    chosen = trajectory.segments[number]
    answers = pieces(trajectory, number)
    shared = chosen.response_ids[: answers[0].start]  # by another sample, of which this one is a fork
    found = [_message("user", chosen.prompt_text, [*chosen.prompt_ids, *shared])]
    before: Piece | None = None
    for piece in answers:
        if before is not None and piece.start > before.end:
            found.append(_environment(chosen, before, piece))
        found.append(_assistant(chosen, piece, input_ids=input_ids))
        before = piece
    return found


def _assistant(segment: Segment, piece: Piece, *, input_ids: bool) -> Message:
    made = {
        "role": "assistant",
        "content": piece.turn.text,
        "tool_calls": [{"name": call.name, "arguments": call.arguments} for call in piece.turn.tool_calls if call.name],
        "token_ids": list(segment.response_ids[piece.start : piece.end]),
        "logprobs": list(segment.logprobs[piece.start : piece.end]),
    }
    if input_ids:
        made["input_ids"] = [*segment.prompt_ids, *segment.response_ids[: piece.start]]
    return made


def _environment(segment: Segment, before: Piece, after: Piece) -> Message:
    printed = "\n".join(call.result for call in before.turn.tool_calls) or before.turn.reply
    role = "tool" if before.turn.tool_calls else "user"
    return _message(role, printed, segment.response_ids[before.end : after.start])


def _message(role: str, content: str, token_ids: Any) -> Message:
    return {"role": role, "content": content, "token_ids": list(token_ids), "logprobs": None, "input_ids": None}
