"""The result of a rollout, and the limits that end it."""

from collections.abc import Sequence
from typing import Final

import msgspec

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Trajectory
from workers.agent.hermes import Message
from workers.agent.tokens import TokenRecord

MAX_REFUSED_TURNS: Final = 4  # in a row: then the policy has broken the protocol


class LoopEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rollout ended; `truncated_by` names the limit, if it was one."""

    reason: str  # finish, answer, max_turns, max_tokens, context, time, protocol, sandbox, intercepted: WHY
    truncated_by: str | None = None


class AgentResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished rollout. `answer` is the message of `finish`, or else the last text that the model wrote."""

    trajectory: Trajectory
    answer: str
    stop: LoopEnd
    tool_calls: int
    refused_calls: int  # bad JSON, unknown tool, wrong arguments
    sampled_tokens: int
    forks: int
    exchanged: Sequence[Message] = ()  # texts and tools' results of all turns but the last, for scorers that read them

    @property
    def agent_error(self) -> str | None:
        """The policy's break of the protocol, if there was one."""
        if self.stop.reason != "protocol":
            return None
        return f"no usable tool call in {MAX_REFUSED_TURNS} turns in a row; {self.refused_calls} calls were refused"


def room_of(sampling: Sampling, record: TokenRecord) -> tuple[int, LoopEnd]:
    """Number of tokens that may be sampled now, and the limit that sets it."""
    if record.turns >= sampling.max_turns:
        return 0, LoopEnd(reason="max_turns", truncated_by="turns")
    tokens = min(sampling.max_tokens_per_turn, sampling.max_tokens - record.sampled_tokens)
    context = sampling.max_context_tokens - len(record.context)
    if context < tokens:
        return context, LoopEnd(reason="context", truncated_by="context")
    return tokens, LoopEnd(reason="max_tokens", truncated_by="tokens")


def left_of(sampling: Sampling, record: TokenRecord) -> str:
    """Note of what the limits leave, before the answer that carries it."""
    turns = sampling.max_turns - record.turns
    tokens = sampling.max_tokens - record.sampled_tokens
    context = sampling.max_context_tokens - len(record.context)
    return f"[left: {turns} turns, {max(0, min(tokens, context))} tokens]"
