"""verl, and VeRL-Tool's variant of it: an agent loop whose rollouts the service makes.

In verl's agent configuration: `- {name: prorl, _target_: verl_agent_loop.ProrlAgentLoop}`, and `agent_name: prorl` in
the data set. PRORL_URL and PRORL_RUN say where and as which run. Each row of the data set is a task: `data_source`,
`extra_info` as its payload, `extra_info.index` or `uid` as its id.

For VeRL-Tool make the class with its module: `ProrlAgentLoop = agent_loop(verl_tool.agent_loop.agent_loop)`.
"""

import contextlib
import os
from types import ModuleType
from typing import Any

from prorl_mq.client.rollouts import sampling_of, shared
from prorl_mq.converters import verl
from prorl_mq.schema.messages import Task


def task_of(row: dict[str, Any]) -> Task:
    """A row of the data set as a task."""
    extra = dict(row.get("extra_info") or {})
    name = row.get("uid", extra.pop("index", None))
    return Task(task_id=str(name), data_source=row["data_source"], payload=extra)


def agent_loop(theirs: ModuleType) -> type:
    """The class for a module that has `AgentLoopBase`, `AgentLoopOutput` and `register`."""

    @theirs.register("prorl")
    class ProrlAgentLoop(theirs.AgentLoopBase):  # type: ignore[misc,name-defined]
        """One sample a call. Of several rows verl takes one, which is drawn by its share of the trained tokens."""

        __qualname__ = "ProrlAgentLoop"  # by which verl imports it

        async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
            run_id, token = os.environ.get("PRORL_RUN", "verl"), os.environ.get("PRORL_TOKEN")
            rollouts = await shared(os.environ["PRORL_URL"], run_id, token=token)
            [found] = await rollouts.of(task_of(row), sampling=sampling_of(sampling_params))
            return theirs.AgentLoopOutput(**verl.outputs(found)[found.drawn])

    return ProrlAgentLoop


with contextlib.suppress(ImportError):  # VeRL-Tool has a module of its own
    from verl.experimental.agent_loop import agent_loop as _verl

    ProrlAgentLoop = agent_loop(_verl)
