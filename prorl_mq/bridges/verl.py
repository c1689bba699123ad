"""verl 0.9: an agent loop whose rollouts the service makes.

    - {name: prorl, _target_: prorl_mq.bridges.verl.ProrlAgentLoop, url: "http://127.0.0.1:8080", run_id: my-run}

is the file that `actor_rollout_ref.rollout.agent.agent_loop_config_path` names; `agent_name: prorl` in the data set,
or `default_agent_loop: prorl`, chooses it. Rows are those of `tasks`; `sources` in the file renames data sources.

* Lengths: `rollout.prompt_length` and `rollout.response_length` are limits of the rollout, and rows are cut to them.
* Rows: verl's own trainer (`trainer.use_v1`, the default) takes all rows of a sample. With `adv_estimator: grpo` it
  makes advantages of the last one for all of them; with `gae` each row has its own values; every other estimator would
  count a sample in its baseline as often as it has rows. With `loss_agg_mode: token-mean`, its default, a row's weight
  is 1. With another estimator, with a loss that averages each sequence first, and in workers that take one sequence, it
  gets the one row that is drawn by its share of the tokens.
* Routing replay: `routed_experts: {layers: 48, top_k: 8, experts: 128}` in the file, of the model's configuration.
* A validation's rollouts are evaluations, with the sampling of `rollout.val_kwargs`; each of its `n` is a call.
* A sample that was lost raises `NotTrainable` with the cause: verl's trainer then draws the prompt again. The worker
  of `use_v1: false` gives up the batch.
"""

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final

import msgspec

from prorl_mq.bridges.theirs import InRun, experts_of, imported
from prorl_mq.client.rollouts import sampling_of
from prorl_mq.converters import verl
from prorl_mq.converters.rollout import Rollout, draw
from prorl_mq.schema.messages import Purpose, Sampling

MODULE = "verl.experimental.agent_loop.agent_loop"
TOKEN_MEANS: Final = frozenset({"token-mean", "token-sum"})
WORKERS_CALL: Final = "_run_agent_loop"  # of verl's worker, which awaits `run`
CALLERS: Final = 4  # between the two at most: wrappers that trace
ESTIMATORS: Final = frozenset({"grpo", "gae"})  # that count a sample once, however many rows it has


def __getattr__(name: str) -> Any:
    if name != "ProrlAgentLoop":
        raise AttributeError(name)
    made = agent_loop(imported(MODULE, "verl>=0.9"))
    globals()[name] = made
    return made


def agent_loop(theirs: Any, module: str = __name__, *, one_row: bool = False) -> type:
    """The class for a module that has `AgentLoopBase`, `AgentLoopOutput` and `register`; `module`: where it is kept.

    `one_row`: the worker takes one sequence a sample, whatever the configuration says.
    """

    class ProrlAgentLoop(InRun, theirs.AgentLoopBase):  # type: ignore[misc]
        """One sample a call."""

        run_id = "verl"

        def __init__(self, *args: Any, routed_experts: Mapping[str, int] | None = None, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._run = msgspec.structs.replace(self._run, routed_experts=experts_of(routed_experts))

        async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
            purpose = Purpose.EVAL if _validates(sys._getframe(1)) else Purpose.TRAIN  # noqa: SLF001
            lengths = _lengths(self.config.actor_rollout_ref.rollout)
            rollouts = await self._run.rollouts()
            sampling = self._run.sampled(_sampling(sampling_params, lengths))
            [found] = await rollouts.of(self._run.task(row), sampling=sampling, purpose=purpose)
            takes_rows = not one_row and _takes_rows(self.config)
            made = [theirs.AgentLoopOutput(**each) for each in rows(found, lengths, takes_rows=takes_rows)]
            return made if takes_rows else made[0]

    ProrlAgentLoop.__module__, ProrlAgentLoop.__qualname__ = module, "ProrlAgentLoop"  # by which verl imports it
    registered: type = theirs.register("prorl")(ProrlAgentLoop)
    return registered


def rows(found: Rollout, lengths: dict[str, int | None], *, takes_rows: bool) -> list[verl.AgentLoopOutput]:
    """Those that verl gets of a sample: all, or one that is drawn."""
    made = verl.outputs(found, **lengths)
    if takes_rows:
        return made
    return [made[draw(found.sample.job_id, [each["extra_fields"]["share"] for each in made])]]


def _validates(caller: FrameType | None) -> bool:
    """True in a validation, of which verl's worker tells a loop nothing: it awaits the loop, and knows."""
    for _ in range(CALLERS):
        if caller is None:
            return False
        told = caller.f_locals.get("trajectory")
        if caller.f_code.co_name == WORKERS_CALL and isinstance(told, Mapping):
            return bool(told.get("validate"))
        caller = caller.f_back
    return False


def _takes_rows(config: Any) -> bool:
    """True where several outputs of a call are rows of one sample, each token of them with the same weight."""
    trainer, actor = getattr(config, "trainer", None), getattr(config.actor_rollout_ref, "actor", None)
    estimator = getattr(getattr(config, "algorithm", None), "adv_estimator", "gae")
    mode = getattr(actor, "loss_agg_mode", "token-mean")
    return bool(getattr(trainer, "use_v1", False)) and mode in TOKEN_MEANS and estimator in ESTIMATORS


def _lengths(rollout: Any) -> dict[str, int | None]:
    return {name: getattr(rollout, name, None) for name in ("prompt_length", "response_length")}


def _sampling(given: Mapping[str, Any], lengths: dict[str, int | None]) -> Sampling:
    prompt, response = lengths["prompt_length"], lengths["response_length"]
    limits = {}
    if response is not None:
        limits = {"max_tokens": response, "max_tokens_per_turn": response}
        if prompt is not None:
            limits["max_context_tokens"] = max(16, prompt + response)
    return sampling_of({name: value for name, value in given.items() if name != "logprobs"}, **limits)
