"""AReaL 1.0: a rollout workflow whose rollouts the service makes.

    trainer.train(
        workflow="prorl_mq.bridges.areal.ProrlWorkflow", workflow_kwargs={"url": url, "gconfig": config.gconfig}
    )

Rows are those of `tasks` (`sources` renames data sources); `messages` is the prompt.

* Limits: `gconfig.max_new_tokens` is that of a response, `gconfig.max_tokens` that of the whole sequence.
* Rows: AReaL normalises rewards over groups of `n_samples` sequences, so a sample is one row, drawn by its share of
  the sample's trained tokens. Its losses average the tokens of a batch: long rows weigh more than they should.
* An evaluation's rollouts are those whose workflow context says so.
* A sample that was lost is None, AReaL's word for a trajectory that is not trained on; the log has the cause.
"""

import logging
from collections.abc import Mapping
from typing import Any

from prorl_mq.bridges.theirs import ServiceRun, imported
from prorl_mq.client.rollouts import sampling_of
from prorl_mq.converters.limits import FittedRow, drawn, fitted
from prorl_mq.converters.rollout import Rollout
from prorl_mq.errors import NotTrainable, ServiceError
from prorl_mq.schema.messages import Purpose, Sampling

ALL_TOKENS = 10**8  # AReaL's word for no limit of top-k
NAMES = (
    "temperature", "top_p", "top_k", "frequency_penalty", "stop", "stop_token_ids", "min_new_tokens", "ignore_eos",
    "use_beam_search",
)  # fmt: skip
UNKNOWN = -1  # the version of a token that was not sampled
log = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    if name != "ProrlWorkflow":
        raise AttributeError(name)
    made = workflow(imported("areal.api.workflow_api", "areal>=1.0"))
    globals()[name] = made
    return made


def workflow(theirs: Any) -> type:
    """The class for a module that has `RolloutWorkflow`."""

    class ProrlWorkflow(theirs.RolloutWorkflow):  # type: ignore[misc]
        """One sample an episode."""

        def __init__(
            self,
            url: str,
            gconfig: Any = None,
            *,
            run_id: str = "areal",
            token: str | None = None,
            sources: Mapping[str, str] | None = None,
            model: str = "",
        ) -> None:
            self._run = ServiceRun(url=url, run_id=run_id, token=token, sources=dict(sources or {}), model=model)
            self._gconfig = gconfig

        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
            del engine  # the service has the pool
            rollouts, task = await self._run.rollouts(), self._run.task(data)
            evaluates = imported("areal.infra.workflow_context", "areal>=1.0").get().is_eval
            purpose = Purpose.EVAL if evaluates else Purpose.TRAIN
            try:
                [found] = await rollouts.of(task, sampling=_sampling(self._gconfig), purpose=purpose)
                rows = fitted(found, response_length=getattr(self._gconfig, "max_new_tokens", None))
            except (NotTrainable, ServiceError) as error:
                log.warning("a sample is left out: %s", error)
                return None
            return tensors(found, drawn(found, rows))

    ProrlWorkflow.__module__, ProrlWorkflow.__qualname__ = __name__, "ProrlWorkflow"
    return ProrlWorkflow


def _sampling(gconfig: Any) -> Sampling:
    given = {name: getattr(gconfig, name, None) for name in NAMES}
    if getattr(gconfig, "greedy", False):
        given["temperature"] = 0.0
    if (given["top_k"] or 0) >= ALL_TOKENS:
        given["top_k"] = None
    response, whole = getattr(gconfig, "max_new_tokens", None), getattr(gconfig, "max_tokens", None)
    limits = {"max_tokens": response, "max_tokens_per_turn": response, "max_context_tokens": whole}
    return sampling_of(given, **{name: value for name, value in limits.items() if value is not None})


def tensors(found: Rollout, row: FittedRow) -> dict[str, Any]:
    """A batch of one sequence, as AReaL concatenates them."""
    torch = imported("torch", "torch")
    kinds = {"logprobs": torch.float32, "rewards": torch.float32, "attention_mask": torch.bool}
    made = arrays(found, row)
    return {name: torch.tensor([value], dtype=kinds.get(name, torch.int32)) for name, value in made.items()}


def arrays(found: Rollout, row: FittedRow) -> dict[str, Any]:
    """Each array has one entry a token of the sequence: that of token i is at i, not before it."""
    before, spans = len(row.prompt_ids), found.trajectory.segments[row.row.segment].spans
    versions = [UNKNOWN] * (before + len(row.response_ids))
    for span in spans:
        told = span.version[1] if span.version is not None else ""
        for place in range(span.start, span.end):
            at = len(row.row.prompt_ids) + place
            if told.isdecimal() and at < len(versions):
                versions[at] = int(told)
    return {
        "input_ids": [*row.prompt_ids, *row.response_ids],
        "loss_mask": [0] * before + row.loss_mask,
        "logprobs": [0.0] * before + row.logprobs,
        "versions": versions,
        "attention_mask": [True] * len(versions),
        "rewards": found.reward,
    }
