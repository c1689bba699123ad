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

from typing import Any, TypedDict

from prorl_mq.converters.rollout import Rollout, Sampled, completions, said


class LightningEvent(TypedDict):
    """An event; the server adds the ids of rollout and attempt, and the time."""

    event_type: str
    data: dict[str, Any]


class Triplet(TypedDict):
    """The data of a `model_request` as the trainer asks for it. Its reward is the rollout's, in the last one."""

    prompt_token_ids: list[int]
    response_token_ids: list[int]
    response_log_probs: list[float]
    server: dict[str, Any]


def events(rollout: Rollout) -> list[LightningEvent]:
    """The turns and the reward. Raises `NotTrainable` for a trajectory without turns."""
    turns = [LightningEvent(event_type="model_request", data=_model_request(each)) for each in completions(rollout)]
    return [*turns, LightningEvent(event_type="reward", data={"value": rollout.reward, "source": "prorl_mq"})]


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
