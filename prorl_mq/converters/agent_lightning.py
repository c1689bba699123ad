"""Agent Lightning: the events of a rollout as its server keeps and shows them (agentlightning.schemas, 1.0).

A turn is one `model_request`; the last event is the `reward`. Its trainer merges turns whose prompts continue each
other, and begins a new row where they do not; so the turns of all segments stand in one list. Quadratic: each turn
repeats its prompt.

| field of the data | from |
|---|---|
| response.prompt_token_ids | the segment's prompt and its response up to the turn |
| response.choices[0].token_ids, logprobs | the turn's sampled tokens |
| response.choices[0].message.content | the completion's text, without thought, calls and markers |
| server.version | the policy version at the turn's end, where the backend told it as a whole number |
| value | the sample's reward |
"""

import math
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from prorl_mq.converters.rollout import Rollout, Sampled, completions, said


class LightningEvent(TypedDict):
    """An event; the server adds the ids of rollout and attempt, and the time."""

    event_type: str
    data: dict[str, Any]


class Triplet(TypedDict):
    """The data of a `model_request` as the trainer asks for it. Its reward is the rollout's, in the last one."""

    prompt_token_ids: list[int]
    response_token_ids: list[int]
    response_log_probs: list[float] | None  # None: they are missing, or not all numbers
    server: dict[str, Any]
    status: NotRequired[Any]
    http_status: NotRequired[Any]


def events(rollout: Rollout) -> list[LightningEvent]:
    """The turns and the reward. Raises `NotTrainable` for a trajectory without turns."""
    turns = [LightningEvent(event_type="model_request", data=_model_request(each)) for each in completions(rollout)]
    return [*turns, LightningEvent(event_type="reward", data={"value": rollout.reward, "source": "prorl_mq"})]


def triplet(model_request: Mapping[str, Any]) -> Triplet:
    """The short form of an event, of another's as well as of `events`' own: as Agent Lightning's server makes it.

    What an event does not have is empty, and its log-probabilities None: the trainer leaves such a turn out.
    """
    response = _mapping(model_request.get("response"))
    choices = response.get("choices")
    choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    server = _mapping(model_request.get("server"))
    ids = _ids(choice.get("token_ids"))
    logprobs = _logprobs(_mapping(choice.get("logprobs")))
    made = Triplet(
        prompt_token_ids=_ids(response.get("prompt_token_ids")) or _ids(choice.get("prompt_token_ids")),
        response_token_ids=ids,
        response_log_probs=logprobs if logprobs is not None and len(logprobs) == len(ids) else None,
        server={"model": server.get("model"), "version": server.get("version")},
    )
    for name in ("status", "http_status"):
        if name in model_request:
            made[name] = model_request[name]
    return made


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _ids(value: Any) -> list[int]:
    return value if isinstance(value, list) else []


def _logprobs(told: Mapping[str, Any]) -> list[float] | None:
    """Of the completions' schema, or of the chat's."""
    found: Any = told.get("token_logprobs")
    if isinstance(content := told.get("content"), list):
        found = [_mapping(each).get("logprob") for each in content]
    if not isinstance(found, list) or not all(isinstance(each, int | float) and math.isfinite(each) for each in found):
        return None
    return [float(each) for each in found]


def _model_request(sampled: Sampled) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": said(sampled.turn)},
        "token_ids": sampled.ids,
        "logprobs": {"token_logprobs": sampled.logprobs},
        "finish_reason": sampled.turn.finish_reason,
    }
    return {
        "model": "policy",
        "request": {},
        "response": {"prompt_token_ids": sampled.prompt_ids, "choices": [choice]},
        "server": {"model": "policy", "version": sampled.version},
        "latency_ms": sampled.turn.llm_seconds * 1000,
        "http_status": 200,
        "status": "ok",
    }
