"""NeMo Gym: output items of the Responses form, with token fields (nemo_gym.openai_utils, 0.4).

A turn is a message, its function calls and their outputs. What the model made last in a turn carries the three token
fields; every other item has none. Within one list each `prompt_token_ids` starts with all prompt and generation ids
before it; so each segment is a list of its own. The form is quadratic: it repeats the prompt in every turn.

| field | from |
|---|---|
| prompt_token_ids | the segment's prompt and its response up to the turn |
| generation_token_ids, generation_log_probs | the turn's sampled tokens |
| content[].text | the completion's text, without thought, calls and markers |
| name, arguments, output | the tool call; of one that could not be read, no name and what was written |
"""

from typing import Any

from prorl_mq.converters.rollout import Piece, Rollout, pieces, said
from prorl_mq.schema.trajectory import Segment

Item = dict[str, Any]


def items(rollout: Rollout) -> list[list[Item]]:
    """One list of items a segment. Raises `NotTrainable` for a trajectory without turns."""
    return [
        [item for piece in pieces(rollout.trajectory, number) for item in _turn(segment, piece)]
        for number, segment in rollout.segments
    ]


def _turn(segment: Segment, piece: Piece) -> list[Item]:
    made = [_message(piece), *_calls(piece)]
    made[-1] |= {
        "prompt_token_ids": [*segment.prompt_ids, *segment.response_ids[: piece.start]],
        "generation_token_ids": list(segment.response_ids[piece.start : piece.end]),
        "generation_log_probs": list(segment.logprobs[piece.start : piece.end]),
    }
    outputs = [
        {"type": "function_call_output", "call_id": _call_id(piece, place), "output": call.result}
        for place, call in enumerate(piece.turn.tool_calls)
    ]
    return [*made, *outputs]


def _message(piece: Piece) -> Item:
    return {
        "type": "message",
        "id": f"msg_{piece.number}",
        "role": "assistant",
        "status": "completed" if piece.turn.finish_reason == "stop" else "incomplete",
        "content": [{"type": "output_text", "text": said(piece.turn), "annotations": []}],
    }


def _calls(piece: Piece) -> list[Item]:
    return [
        {
            "type": "function_call",
            "id": _call_id(piece, place),
            "call_id": _call_id(piece, place),
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        for place, call in enumerate(piece.turn.tool_calls)
    ]


def _call_id(piece: Piece, place: int) -> str:
    return f"call_{piece.number}_{place}"
