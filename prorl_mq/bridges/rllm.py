"""rLLM: a workflow whose rollouts the service makes.

    AgentTrainer(workflow_class=ProrlWorkflow, workflow_args={"url": "http://127.0.0.1:8080"}, ...)

Rows are those of `tasks` (`sources` renames data sources). Written from its source of August 2026, for the trainer
that trains on the ids of the steps (its unified trainer); it is in no package registry.

* Limits: those of the sampling parameters; `max_prompt_length` and `max_response_length` of the rollout engine.
* Rows: all turns are the steps of one trajectory. rLLM merges steps whose prompts continue each other into rows, and
  makes advantages of trajectories. The loss that fits is a mean over tokens (`token-mean`).
* A sample that was lost is an error with the cause, which rLLM tries again as its `retry_limit` says; it has no
  trajectory, and so no part in a baseline.
"""

from typing import Any

from prorl_mq.bridges.theirs import InRun, imported
from prorl_mq.client.rollouts import sampling_of
from prorl_mq.converters import rllm
from prorl_mq.converters.rollout import Rollout
from prorl_mq.schema.messages import Purpose, Sampling

PACKAGE = "rllm (from its repository)"


def __getattr__(name: str) -> Any:
    if name != "ProrlWorkflow":
        raise AttributeError(name)
    made = workflow(imported("rllm.workflows.workflow", PACKAGE))
    globals()[name] = made
    return made


def workflow(theirs: Any) -> type:
    """The class for a module that has `Workflow`."""

    class ProrlWorkflow(InRun, theirs.Workflow):  # type: ignore[misc]
        """One sample a run. Its sampling is that of the trainer's rollout engine, which generates nothing itself."""

        run_id = "rllm"

        async def run(self, task: dict[str, Any], uid: str, **_: Any) -> Any:
            validates = bool(getattr(self.rollout_engine, "is_validation", False))
            rollouts = await self._run.rollouts()
            [found] = await rollouts.of(
                self._run.task(task),
                sampling=_sampling(self.rollout_engine, validates=validates),
                purpose=Purpose.EVAL if validates else Purpose.TRAIN,
            )
            return episode(found, task, uid)

    ProrlWorkflow.__module__, ProrlWorkflow.__qualname__ = __name__, "ProrlWorkflow"
    return ProrlWorkflow


def _sampling(engine: Any, *, validates: bool) -> Sampling:
    given = dict(getattr(engine, "val_sampling_params" if validates else "train_sampling_params", None) or {})
    given.pop("logprobs", None)
    prompt, response = (getattr(engine, name, None) for name in ("max_prompt_length", "max_response_length"))
    limits = {"max_tokens": response, "max_tokens_per_turn": response} if response else {}
    if prompt and response:
        limits["max_context_tokens"] = max(16, prompt + response)
    return sampling_of(given, **limits)


def episode(found: Rollout, task: dict[str, Any], uid: str) -> Any:
    """One trajectory, whose reward its advantages are made of."""
    agent = imported("rllm.agents.agent", PACKAGE)
    output = imported("rllm.engine.rollout", PACKAGE).ModelOutput
    reason = imported("rllm.workflows.workflow", PACKAGE).TerminationReason
    made = rllm.model_outputs(found)
    steps = [
        agent.Step(
            model_output=output(**each),
            model_response=each["content"],
            chat_completions=[{"role": "assistant", "content": each["content"]}],
            done=place == len(made),
        )
        for place, each in enumerate(made, 1)
    ]
    return agent.Episode(
        id=uid,
        task=task,
        termination_reason=reason(rllm.termination_reason(found)),
        is_correct=found.reward > 0,
        trajectories=[agent.Trajectory(name="prorl", task=task, steps=steps, reward=found.reward)],
        metrics={"reward": found.reward, "turns": len(steps)},
    )
