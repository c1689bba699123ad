"""SkyRL 0.4: a generator whose rollouts the service makes.

    ProrlGenerator("http://127.0.0.1:8080", cfg.generator)

where the trainer's entry point makes its generator. `env_classes` are data sources (`sources` renames them); prompts
and `reward_spec` are the rows' own, and columns without one are the payload. Samples of a prompt are one group.

* Limits: `max_turns`, `max_input_length` and `sampling_params.max_generate_length` of the configuration.
* Images: `processor=AutoProcessor.from_pretrained(DIR)` of the model; rows with images are refused without it.
* Routing replay: `routed_experts={"layers": 48, "top_k": 8, "experts": 128}`, of the model's configuration.
* Rows: with `generator.step_wise_trajectories` all rows of a sample, the last with its reward; SkyRL makes advantages
  of the last rows and gives them to all. The loss that fits is `token_mean`. Without it one row, drawn by its share,
  for a loss that averages each sequence first (`sequence_mean`).
* A prompt that lost a sample is masked, all its samples with it: SkyRL would count the lost one's reward of 0 in the
  baseline. `generate/num_error_trajectories` counts them, the log has the causes. `NotTrainable` if nothing is left.
"""

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from prorl_mq.bridges.theirs import ServiceRun, experts_of, imported
from prorl_mq.client.rollouts import Rollouts, sampling_of
from prorl_mq.converters import skyrl
from prorl_mq.converters.rollout import Rollout
from prorl_mq.errors import NotTrainable, ProrlError
from prorl_mq.schema.messages import Purpose, Sampling, Task

MODULE = "skyrl.train.generators.base"
log = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    if name != "ProrlGenerator":
        raise AttributeError(name)
    made = generator(imported(MODULE, "skyrl>=0.4"))
    globals()[name] = made
    return made


def generator(theirs: Any) -> type:
    """The class for a module that has `GeneratorInterface` and `TrajectoryID`."""

    class ProrlGenerator(theirs.GeneratorInterface):  # type: ignore[misc]
        """`generate` gives each prompt its output, in their order."""

        def __init__(
            self,
            url: str,
            cfg: Any = None,
            *,
            run_id: str = "skyrl",
            token: str | None = None,
            sources: Mapping[str, str] | None = None,
            model: str = "",
            routed_experts: Mapping[str, int] | None = None,
            processor: Any = None,
        ) -> None:
            self._run = ServiceRun(
                url=url,
                run_id=run_id,
                token=token,
                sources=dict(sources or {}),
                model=model,
                routed_experts=experts_of(routed_experts),
            )
            self._cfg, self._processor = cfg, processor

        async def generate(self, input_batch: Any, *_: Any, **__: Any) -> Any:
            places = _groups(input_batch)
            sampling = self._run.sampled(_sampling(input_batch, self._cfg))
            purpose = _purpose(input_batch)
            wanted = [(_task(input_batch, at[0], self._run), len(at)) for at in places]
            rollouts = await self._run.rollouts()
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(_group(rollouts, task, n, sampling, purpose)) for task, n in wanted]
            found: list[Rollout | None] = [None] * len(input_batch["prompts"])
            causes = []
            for at, (came, lost) in zip(places, (each.result() for each in running), strict=True):
                causes += [lost] * len(at) if lost else []
                for place, each in zip(at, came, strict=False):
                    found[place] = each
            asked = input_batch.get("trajectory_ids") or [
                theirs.TrajectoryID(instance_id=f"prompt-{place}", repetition_id=0) for place in range(len(found))
            ]
            return _output(found, causes, asked, self._cfg, self._processor)

    ProrlGenerator.__module__, ProrlGenerator.__qualname__ = __name__, "ProrlGenerator"
    return ProrlGenerator


def _task(batch: Any, place: int, run: ServiceRun) -> Task:
    extras = dict((batch.get("env_extras") or {place: {}})[place] or {})
    asked = (batch.get("trajectory_ids") or {place: None})[place]
    name = str(asked.instance_id if asked is not None else f"prompt-{place}")
    row = {**extras, "data_source": batch["env_classes"][place]}
    if extras.get("prorl") is not None or extras.keys() & {"reward_spec", "reward_model"}:
        row["prompt"] = batch["prompts"][place]
    else:  # all columns are the payload
        row = {"data_source": row["data_source"], "egress": extras.pop("egress", None), "extra_info": extras}
    return msgspec.structs.replace(run.task(row), task_id=name)


def _output(
    found: Sequence[Rollout | None], causes: Sequence[str], asked: Sequence[Any], cfg: Any, processor: Any
) -> Any:
    """`asked`: the trajectory id of each sample. `processor`: of the model, for rollouts with images."""
    told = list(dict.fromkeys(causes))
    for cause in told:
        log.warning("a prompt is left out: %s", cause)
    if not any(found):
        raise NotTrainable("no prompt of the batch can be trained on: " + "; ".join(told))
    made: Any = skyrl.output(found, step_wise=bool(getattr(cfg, "step_wise_trajectories", False)), processor=processor)
    ends = made["is_last_step"] or [True] * len(found)
    of_rows = itertools.accumulate([0, *map(int, ends[:-1])])
    made["trajectory_ids"] = [asked[place] for place in of_rows]
    made["rollout_metrics"] = {"generate/num_error_trajectories": float(len(causes))}
    return _as_configured(made, cfg)


async def _group(
    rollouts: Rollouts, task: Task, n: int, sampling: Sampling, purpose: Purpose
) -> tuple[list[Rollout], str]:
    """All samples of a prompt, or none and the cause: nothing that happens to one prompt reaches another."""
    try:
        came = await rollouts.ask(task, n=n, sampling=sampling, purpose=purpose)
    except ProrlError as error:
        return [], f"task {task.task_id!r}: {type(error).__name__}: {error}"
    return ([], came.lost) if came.lost else (came.rollouts, "")


def _groups(batch: Any) -> list[list[int]]:
    """Places of the samples of each prompt."""
    found: dict[Any, list[int]] = {}
    for place, each in enumerate(batch.get("trajectory_ids") or [None] * len(batch["prompts"])):
        found.setdefault(place if each is None else ("id", each.instance_id), []).append(place)
    return list(found.values())


def _sampling(batch: Any, cfg: Any) -> Sampling:
    given = dict(batch.get("sampling_params") or {})
    given.pop("logprobs", None)
    response = given.get("max_generate_length") or given.get("max_tokens")
    response = response or getattr(getattr(cfg, "sampling_params", None), "max_generate_length", None)
    prompt, turns = getattr(cfg, "max_input_length", None), getattr(cfg, "max_turns", None)
    limits = {"max_tokens_per_turn": response, "max_turns": turns}
    if response and prompt:
        limits |= dict.fromkeys(("max_context_tokens", "max_tokens"), max(16, prompt + response))
    return sampling_of(given, **{name: value for name, value in limits.items() if value is not None})


def _purpose(batch: Any) -> Purpose:
    about = batch.get("batch_metadata")
    return Purpose(about.training_phase) if about is not None else Purpose.TRAIN


def _as_configured(made: Any, cfg: Any) -> Any:
    """Treats samples that a limit ended as SkyRL's own generator does, where its configuration says so."""
    ended = [reason == "stop" for reason in made["stop_reasons"]]
    if getattr(cfg, "zero_reward_on_non_stop", False):
        made["rewards"] = [each if stop else 0.0 for each, stop in zip(made["rewards"], ended, strict=True)]
    if getattr(cfg, "apply_overlong_filtering", False):
        masks = zip(made["loss_masks"], ended, strict=True)
        made["loss_masks"] = [mask if stop else [0] * len(mask) for mask, stop in masks]
    return made
