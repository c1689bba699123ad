"""verifiers 0.4, and prime-rl through it: an environment whose episodes are rollouts of the service.

    from prorl_mq.bridges.verifiers import ProrlEnv, ProrlTaskset

in a module of one's own, `prorl_rollouts.py`, with both names in `__all__`, is the taskset `prorl-rollouts`, which
`prime-rl` and `verifiers.v1.serve.server.EnvServer` serve:

    taskset = {id = "prorl-rollouts", path = "tasks.jsonl"}
    url = "http://127.0.0.1:8080"

Rows are those of `tasks`, in JSON lines. The policy is the service's pool: the trainer's inference servers join it
(`Client.add_backend`), and the client that a request names is not used.

* Limits: `sampling.max_tokens` is that of a completion; `agent.max_turns`, `agent.max_output_tokens` and
  `agent.max_total_tokens` are those of a rollout.
* Rows: one trace a sample, one branch a row. prime-rl makes advantages of traces, trains each sampled token of a
  branch once, and averages over tokens: a row's weight is 1.
* A sample that was lost is an episode with an error and no trace, which prime-rl drops and repeats.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

from prorl_mq.bridges.tasks import task_of
from prorl_mq.client import AsyncClient
from prorl_mq.client.rollouts import Rollouts, sampling_of
from prorl_mq.converters.rollout import Piece, Rollout, pieces, said
from prorl_mq.errors import ProrlError
from prorl_mq.schema.messages import Purpose, Sampling
from prorl_mq.schema.trajectory import Segment

try:
    import verifiers.v1 as vf
    from verifiers.v1.episode import EnvInfo
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.runtimes import SubprocessConfig
    from verifiers.v1.trace import AgentInfo, Error, ModelCall, TraceTask
    from verifiers.v1.types import AssistantMessage, ToolCall, ToolMessage, Usage, UserMessage
except ImportError as error:
    raise ImportError("this bridge needs verifiers>=0.4: pip install 'prorl-mq[verifiers]'", name=error.name) from error

STOPS = {
    "turns": "max_turns",
    "tokens": "max_output_tokens",
    "context": "max_total_tokens",
    "time": "agent_timeout",
    None: "agent_completed",
}
OnTrace = Callable[[Any], None]


class ProrlTaskData(vf.TaskData):
    """A row of the file."""

    row: dict[str, Any]


class ProrlTask(vf.Task[ProrlTaskData]):
    """A row; the service has its tools and its score."""


class ProrlTasksetConfig(vf.TasksetConfig):
    path: str = ""
    """JSON lines, one row each."""


class ProrlTaskset(vf.Taskset[ProrlTask, ProrlTasksetConfig]):
    """The rows of a file."""

    def load(self) -> Iterable[ProrlTask]:
        if not self.config.path:
            raise ValueError("the taskset has no `path`: name a file of JSON lines")
        with Path(self.config.path).open(encoding="utf-8") as lines:
            for line in filter(str.strip, lines):
                data = ProrlTaskData(row=json.loads(line))  # pyright: ignore[reportCallIssue] - a default it does not see
                yield ProrlTask(data, self.config.task)


class ProrlEnvConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(runtime=SubprocessConfig())
    """The one seat; the service runs its agent."""
    url: str = "http://127.0.0.1:8080"
    run_id: str = "verifiers"
    token: str | None = None
    sources: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    """Data sources of rows, and those of task families."""
    model: str = ""
    """Whose rows it gives, where a task trains several models; empty: the policy's."""
    purpose: Purpose = Purpose.TRAIN
    """`eval` in the environment of an evaluation: a request does not tell."""


class ProrlEnv(vf.Env[ProrlEnvConfig]):
    """Episodes that the service plays."""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """One reader of results for all episodes; nothing of verifiers' own runs here."""
        client = AsyncClient(self.config.url, token=self.config.token)
        async with client, Rollouts(client, self.config.run_id, model=self.config.model) as self._rollouts:
            yield

    async def run(self, task: vf.Task, agents: Any) -> None:
        raise NotImplementedError("the service plays an episode as a whole: `run_episode`")

    async def run_episode(
        self, task: vf.Task, ctx: Any, *, on_trace: OnTrace | None = None, on_discard: OnTrace | None = None
    ) -> vf.Episode:
        del on_discard
        about = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        episode: vf.Episode = vf.Episode(env=EnvInfo(id=self.config.env_id), task=about)
        try:
            async with asyncio.timeout(self.config.timeout.episode):
                wanted = task_of(task.data.row, self.config.sources)
                sampling = _sampling(ctx.sampling, self.config.agent)
                [found] = await self._rollouts.of(wanted, sampling=sampling, purpose=self.config.purpose)
            trace = trace_of(found, about, AgentInfo(config=self.config.agent))
        except (ProrlError, TimeoutError) as error:
            episode.is_timeout = isinstance(error, TimeoutError)
            episode.errors.append(Error(type=type(error).__name__, message=str(error) or "the episode took too long"))
            return episode
        episode.traces.append(trace)
        if on_trace is not None:
            on_trace(trace)
        episode.ok = True
        return episode


def _sampling(given: Any, agent: Any) -> Sampling:
    limits = {
        "max_turns": agent.max_turns,
        "max_tokens": agent.max_output_tokens,
        "max_context_tokens": agent.max_total_tokens,
    }
    asked = given.model_dump(exclude_none=True)
    return sampling_of(asked, **{name: value for name, value in limits.items() if value is not None})


def trace_of(found: Rollout, task: Any, agent: Any) -> Any:
    """A sample as a trace: a branch for each of its rows."""
    trace: Any = vf.Trace(task=task, agent=agent)
    for number, segment in found.segments:
        _branch(trace, segment, pieces(found.trajectory, number))
    trace.record_reward("reward", found.reward)
    trace.record_metrics(dict(found.sample.reward_parts))
    trace.info = {"prorl_job": found.sample.job_id, "prorl_outcome": str(found.sample.outcome)}
    trace.stop(STOPS[found.trajectory.truncated_by])
    trace.ok = True
    return trace


def _branch(trace: Any, segment: Segment, found: list[Piece]) -> None:
    """Ids of the nodes, one behind the other, are the row's up to its last sampled token."""
    opening = UserMessage(content=segment.prompt_text)
    _node(trace, opening, None, segment.prompt_ids)
    end = 0
    for before, piece in zip([None, *found], found, strict=False):
        parent = len(trace.nodes) - 1
        if piece.start > end:
            _node(trace, _between(before), parent, segment.response_ids[end : piece.start])
            parent += 1
        _completion(trace, segment, piece, parent)
        end = piece.end


def _node(trace: Any, message: Any, parent: int | None, ids: Any, logprobs: Any = ()) -> None:
    sampled = bool(logprobs)
    trace.nodes.append(
        MessageNode(
            parent=parent, message=message, sampled=sampled, token_ids=list(ids), mask=[sampled] * len(ids),
            logprobs=list(logprobs),
        )
    )  # fmt: skip


def _completion(trace: Any, segment: Segment, piece: Piece, parent: int) -> None:
    turn = piece.turn
    calls = [
        ToolCall(id=f"call_{piece.number}_{place}", name=call.name, arguments=call.arguments)
        for place, call in enumerate(turn.tool_calls)
    ]
    message = AssistantMessage(content=said(turn), tool_calls=calls or None)
    cut = slice(piece.start, piece.end)
    _node(trace, message, parent, segment.response_ids[cut], segment.logprobs[cut])
    cached = turn.cached_tokens or 0
    usage = Usage(
        prompt_tokens=turn.prompt_tokens - cached, completion_tokens=turn.completion_tokens, cached_input_tokens=cached
    )
    reason = "length" if turn.finish_reason == "length" else "tool_calls" if calls else "stop"
    trace.calls.append(ModelCall(node=len(trace.nodes) - 1, finish_reason=reason, usage=usage))


def _between(before: Piece | None) -> Any:
    """The message of the environment behind a completion."""
    if before is None or not before.turn.tool_calls:
        return UserMessage(content=before.turn.reply if before else "")
    last = len(before.turn.tool_calls) - 1
    printed = "\n".join(call.result for call in before.turn.tool_calls)
    return ToolMessage(tool_call_id=f"call_{before.number}_{last}", content=printed)
