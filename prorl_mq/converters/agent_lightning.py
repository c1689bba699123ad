"""Agent Lightning: the events of a rollout as its server keeps and shows them (agentlightning.schemas, 1.0).

A turn is one `model_request`; the last event is the `reward`. Its trainer merges turns whose prompts continue each
other, and begins a new row where they do not; so the turns of all segments stand in one list. Quadratic: each turn
repeats its prompt.

| field of the data | from |
|---|---|
| response.prompt_token_ids | the segment's prompt and its response up to the turn |
| response.choices[0].token_ids, logprobs | the turn's sampled tokens |
| response.choices[0].message.content | the completion as people read it |
| server.version | the policy version at the turn's end, where the backend told it as a whole number |
| value | the sample's reward |
"""

from typing import Any, TypedDict

from prorl_mq.converters.rollout import Piece, Rollout, pieces
from prorl_mq.trajectory import Segment


class Event(TypedDict):
    """What the server adds are the ids of rollout and attempt, and the time."""

    event_type: str
    data: dict[str, Any]


class Triplet(TypedDict):
    """The data of a `model_request` as the trainer asks for it. Its reward is the rollout's, in the last one."""

    prompt_token_ids: list[int]
    response_token_ids: list[int]
    response_log_probs: list[float]
    server: dict[str, Any]


def events(rollout: Rollout) -> list[Event]:
    """The turns and the reward. Raises `NotTrainable` for a trajectory without turns."""
    turns = [
        Event(event_type="model_request", data=_model_request(segment, piece))
        for number, segment in rollout.segments
        for piece in pieces(rollout.trajectory, number)
    ]
    return [*turns, Event(event_type="reward", data={"value": rollout.reward, "source": "prorl_mq"})]


def triplet(model_request: dict[str, Any]) -> Triplet:
    """The short form of what `events` made."""
    response = model_request["response"]
    [choice] = response["choices"]
    return Triplet(
        prompt_token_ids=response["prompt_token_ids"],
        response_token_ids=choice["token_ids"],
        response_log_probs=choice["logprobs"]["token_logprobs"],
        server=model_request["server"],
    )


def _model_request(segment: Segment, piece: Piece) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": piece.turn.text},
        "token_ids": list(segment.response_ids[piece.start : piece.end]),
        "logprobs": {"token_logprobs": list(segment.logprobs[piece.start : piece.end])},
        "finish_reason": piece.turn.finish_reason,
    }
    return {
        "model": "policy",
        "request": {},
        "response": {
            "prompt_token_ids": [*segment.prompt_ids, *segment.response_ids[: piece.start]],
            "choices": [choice],
        },
        "server": {"model": "policy", "version": _version(segment, piece)},
        "latency_ms": piece.turn.llm_seconds * 1000,
        "http_status": 200,
        "status": "ok",
    }


def _version(segment: Segment, piece: Piece) -> int | None:
    told = [span.version for span in segment.spans if piece.start <= span.start < piece.end]
    last = told[-1] if told else None
    return int(last[1]) if last is not None and last[1].isdecimal() else None
