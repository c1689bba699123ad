"""Scores a conversation as the environment's own task does, in the process of `workers.handlers.forks`."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import msgspec

from workers.agent.hermes import Message
from workers.handlers.blame import ScorerReply, fault_of
from workers.handlers.verifiers.environments import EnvironmentPlace, config_of


class ScoringRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A task's data, as JSON, the messages that it began with, and what was said afterwards."""

    place: EnvironmentPlace
    data: dict[str, Any]
    begun: Sequence[Message]
    said: Sequence[Message]
    truncated: bool = False


class VerifiersScore(ScorerReply, frozen=True, kw_only=True):
    """`fault`: what the environment raised."""

    reward: float = 0.0
    parts: Mapping[str, float] = {}


def load() -> None:
    """Takes some seconds, that no request needs to take again."""
    import_module("verifiers.v1.utils.loaders")
    import_module("verifiers.v1.tasksets")


def reply_to(line: bytes) -> bytes:
    """The task's reward and metrics for a rollout."""
    try:
        reply = asyncio.run(scored(msgspec.json.decode(line, type=ScoringRequest)))
    except Exception as error:  # environments raise whatever they come upon
        reply = VerifiersScore(fault=fault_of(error))
    return msgspec.json.encode(reply)


async def scored(request: ScoringRequest) -> VerifiersScore:
    """Raises what the environment raises."""
    kind = import_module("verifiers.v1.utils.loaders").task_type(request.place.env_id)
    task = kind(kind.data_type().model_validate(request.data), config_of(request.place).task)
    trace = _trace(task, request)
    await task.score(trace)
    scores = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    parts = {name: float(value) for name, value in {**metrics, **scores}.items() if math.isfinite(value)}
    if not math.isfinite(trace.reward):
        raise ValueError(f"the reward is {trace.reward}")
    return VerifiersScore(reward=float(trace.reward), parts=parts)


def _trace(task: Any, request: ScoringRequest) -> Any:
    """The record that verifiers' scorers read."""
    traces, states = import_module("verifiers.v1.trace"), import_module("verifiers.v1.state")
    node = import_module("verifiers.v1.graph").MessageNode
    trace = traces.Trace(
        task=traces.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=traces.AgentInfo(config=import_module("verifiers.v1.configs.agent").AgentConfig()),
        state=states.state_cls(type(task))(),
    )
    for place, said in enumerate([*request.begun, *request.said]):
        told = {"role": said.role, "content": said.content}
        if said.role == "tool":
            told["tool_call_id"] = str(place)
        sampled = said.role == "assistant" and place >= len(request.begun)
        trace.nodes.append(node(parent=place - 1 if place else None, message=told, sampled=sampled))
    trace.stop("max_total_tokens" if request.truncated else "agent_completed")
    return trace
