"""rLLM: a workflow whose rollouts the service makes.

    AgentTrainer(workflow_class=ProrlWorkflow, workflow_args={"url": "http://127.0.0.1:8080"}, ...)

A row of the data set names its task in `prorl`: `{"task_id", "data_source", "payload"}`. A sample that the service
could not get is an error, which rLLM tries again as its `retry_limit` says. It takes an rLLM whose trainer trains on
the ids of the steps (its unified trainer); an older one re-encoded their messages.
"""

from typing import Any

from rllm.agents.agent import Episode, Step, Trajectory
from rllm.engine.rollout import ModelOutput
from rllm.workflows.workflow import TerminationReason, Workflow

from prorl_mq.client.rollouts import sampling_of, shared
from prorl_mq.converters import rllm
from prorl_mq.converters.rollout import Rollout
from prorl_mq.schema.messages import Purpose, Task
from prorl_mq.schema.strict import convert


class ProrlWorkflow(Workflow):  # type: ignore[misc]
    """One sample a run. Its sampling is that of the trainer's rollout engine, which generates nothing itself."""

    def __init__(self, *args: Any, url: str, run_id: str = "rllm", token: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._url, self._run_id, self._token = url, run_id, token

    async def run(self, task: dict[str, Any], uid: str, **_: Any) -> Episode:
        purpose = Purpose.EVAL if getattr(self.rollout_engine, "is_validation", False) else Purpose.TRAIN
        name = "val_sampling_params" if purpose is Purpose.EVAL else "train_sampling_params"
        sampling = sampling_of(getattr(self.rollout_engine, name, None) or {})
        rollouts = await shared(self._url, self._run_id, token=self._token)
        [found] = await rollouts.of(convert(task["prorl"], Task), sampling=sampling, purpose=purpose)
        return episode(found, task, uid)


def episode(found: Rollout, task: dict[str, Any], uid: str) -> Episode:
    """One trajectory, whose reward its advantages are made of."""
    outputs = rllm.model_outputs(found)
    steps = [
        Step(
            model_output=ModelOutput(**each),
            model_response=each["content"],
            chat_completions=[{"role": "assistant", "content": each["content"]}],
            done=place == len(outputs),
        )
        for place, each in enumerate(outputs, 1)
    ]
    return Episode(
        id=uid,
        task=task,
        termination_reason=TerminationReason(rllm.termination_reason(found)),
        is_correct=found.reward > 0,
        trajectories=[Trajectory(name="prorl", task=task, steps=steps, reward=found.reward)],
        metrics={"reward": found.reward, "turns": len(steps)},
    )
