"""TRL 1.16: rollouts for `GRPOTrainer`.

    trainer = trainer_of(GRPOTrainer)(..., rollout_func=rollout_func(url, task_of), reward_funcs=[rewards])

`task_of` makes a task of a prompt as the data set has it. TRL repeats each prompt; repeats next to each other become
one group. TRL makes importance ratios of the log-probabilities only with `use_vllm`.

* Limits: `max_completion_length` is the limit of a rollout's response, and rows are cut to it.
* Rows: TRL's own trainer takes one row a sample, which is drawn by its share, for `loss_type="grpo"`. The class that
  `trainer_of` makes takes all: advantages are those of samples, and a row's weight is 1 in losses that average tokens
  (`dapo`, the default, `bnpo`, `cispo`, `vespo`), and its share where each row is averaged first (`grpo`, `sapo`,
  `luspo`). With `beta` above 0 the KL term is averaged over rows.
* Rollouts of TRL's evaluation are evaluations.
* A sample that was lost is a token of mask 0 whose reward is None: TRL leaves it out of the baseline. The log has the
  cause. `NotTrainable` if nothing is left in any process.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from prorl_mq.bridges.theirs import imported
from prorl_mq.client import AsyncClient
from prorl_mq.client.rollouts import Rollouts, sampling_of
from prorl_mq.converters.limits import FittedRow, drawn, fitted
from prorl_mq.converters.rollout import Rollout
from prorl_mq.errors import NotTrainable, ProrlError
from prorl_mq.schema.messages import Purpose, Sampling, Task

T = TypeVar("T")
Output = dict[str, list[Any]]
ROW_MEANS: Final = frozenset({"grpo", "sapo", "luspo"})  # losses that average each row, and then rows
PER_ROW: Final = ROW_MEANS | {"dr_grpo"}  # that divide by the number of rows
log = logging.getLogger(__name__)


def rollout_func(
    url: str, task_of: Callable[[Any], Task], *, run_id: str = "trl", token: str | None = None, model: str = ""
) -> Callable[[Sequence[Any], Any], Output]:
    """A function that TRL calls with its prompts and itself."""

    def roll_out(prompts: Sequence[Any], trainer: Any) -> Output:
        args = trainer.args
        length: int = args.max_completion_length
        given = {"temperature": args.temperature, "top_p": args.top_p, "top_k": _top_k(args)}
        given |= {name: getattr(args, name, None) for name in ("repetition_penalty", "min_p")}
        sampling = sampling_of(given, max_tokens=length, max_tokens_per_turn=length)
        purpose = Purpose.TRAIN if trainer.model.training else Purpose.EVAL  # as TRL tells the two apart
        groups = [(task_of(prompt), len(list(same))) for prompt, same in itertools.groupby(prompts)]

        async def ask() -> list[tuple[list[Rollout], str]]:
            async with (
                AsyncClient(url, token=token) as client,
                Rollouts(client, run_id, model=model) as rollouts,
                asyncio.TaskGroup() as tasks,
            ):
                asked = [tasks.create_task(_group(rollouts, task, n, sampling, purpose)) for task, n in groups]
            return [each.result() for each in asked]

        came = _finished(ask)
        found: list[Rollout | None] = []
        for (_, n), (samples, lost) in zip(groups, came, strict=True):
            if lost:
                log.warning("%d of %d samples are left out: %s", n - len(samples), n, lost)
            found += [*samples, *[None] * (n - len(samples))]
        if not _anywhere(trainer, has=any(found)):
            raise NotTrainable("no prompt of the batch can be trained on: " + "; ".join(lost for _, lost in came))
        return output(found, length, all_rows=isinstance(trainer, RowTrainer))

    return roll_out


def _finished(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Its result; a thread of its own has the event loop where the caller is in one, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()


def _anywhere(trainer: Any, *, has: bool) -> bool:
    """True if a process has a sample: one that raises alone leaves the others waiting for its part of the batch."""
    if getattr(getattr(trainer, "accelerator", None), "num_processes", 1) == 1:
        return has
    return any(imported("accelerate.utils", "accelerate").gather_object([has]))


def _top_k(args: Any) -> int | None:
    """TRL's word for no limit is 0 or None."""
    return getattr(args, "top_k", None) or None


async def _group(
    rollouts: Rollouts, task: Task, n: int, sampling: Sampling, purpose: Purpose
) -> tuple[list[Rollout], str]:
    try:
        came = await rollouts.ask(task, n=n, sampling=sampling, purpose=purpose)
    except ProrlError as error:
        return [], f"task {task.task_id!r}: {type(error).__name__}: {error}"
    return came.rollouts, came.lost


def output(found: Sequence[Rollout | None], length: int | None = None, *, all_rows: bool = False) -> Output:
    """A row for each sample, in order; then the other rows, if `all_rows`. None is a sample that was lost.

    `row_sample` and `row_share` tell of each row whose it is, and its share of that sample's trained tokens.
    """
    rows: list[tuple[int, FittedRow | None]] = []
    others: list[tuple[int, FittedRow | None]] = []
    for place, each in enumerate(found):
        fits = fitted(each, response_length=length) if each else []
        first = None if each is None else fits[0] if all_rows else drawn(each, fits)
        rows.append((place, first))
        others += [(place, other) for other in fits[1:]] if all_rows else []
    rows += others
    made: Output = {
        "prompt_ids": [row.prompt_ids if row else [0] for _, row in rows],
        "completion_ids": [row.response_ids if row else [0] for _, row in rows],
        "logprobs": [row.logprobs if row else [0.0] for _, row in rows],
        "env_mask": [row.loss_mask if row else [0] for _, row in rows],  # 0: what the environment said
        "reward": [None if each is None else each.reward for each in found],
    }
    if all_rows:
        made["row_sample"] = [place for place, _ in rows]
        made["row_share"] = [row.share if row else 0.0 for _, row in rows]
    return made


def rewards(completions: Sequence[Any], reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """The reward function to give to TRL: what EVAL said."""
    return list(reward)[: len(completions)]


class RowTrainer:
    """A mixin for `GRPOTrainer` that trains on all rows of a sample."""

    loss_type: str

    def _generate(self, prompts: list[Any]) -> Any:
        theirs: Any = super()
        ids, completion_ids, mask, completions, logprobs, extra, images, tool_images = theirs._generate(prompts)  # noqa: SLF001
        self._row_sample: list[int] = extra.pop("row_sample", list(range(len(prompts))))
        self._row_share: list[float] = extra.pop("row_share", [1.0] * len(prompts))
        return ids, completion_ids, mask, completions[: len(prompts)], logprobs, extra, images, tool_images

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids: Any) -> Any:
        theirs: Any = super()
        return theirs._calculate_rewards(inputs, prompts, completions, completion_ids[: len(prompts)])  # noqa: SLF001

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        theirs: Any = super()
        made = theirs._generate_and_score_completions(inputs)  # noqa: SLF001
        of_samples = made["advantages"]
        weights = row_weights(self._row_share, len(inputs), self.loss_type)
        made["advantages"] = of_samples[self._row_sample] * of_samples.new_tensor(weights)
        return made


def row_weights(shares: Sequence[float], samples: int, loss_type: str) -> list[float]:
    """The factor of each row's advantage, so that each sample weighs what it does with one row."""
    if loss_type not in PER_ROW:
        return [1.0] * len(shares)
    rows_per_sample = len(shares) / samples
    return [(share if loss_type in ROW_MEANS else 1.0) * rows_per_sample for share in shares]


def trainer_of(theirs: type | None = None) -> type:
    """A subclass of TRL's `GRPOTrainer`, or of the user's own, that trains on all rows. Its rollouts come from here."""
    base = theirs or imported("trl", "trl>=1.16").GRPOTrainer

    class ProrlTrainer(RowTrainer, base):  # type: ignore[misc,valid-type]
        """Rows of all processes are made equally many, and divide into `steps_per_generation`, by rows of mask 0."""

        def __init__(self, *args: Any, rollout_func: Callable[[Sequence[Any], Any], Output], **kwargs: Any) -> None:
            super().__init__(*args, rollout_func=_padded(rollout_func), **kwargs)  # pyright: ignore[reportCallIssue]

    return ProrlTrainer


def _padded(func: Callable[[Sequence[Any], Any], Output]) -> Callable[[Sequence[Any], Any], Output]:
    def roll_out(prompts: Sequence[Any], trainer: Any) -> Output:
        made = func(prompts, trainer)
        gather = imported("accelerate.utils", "accelerate").gather_object
        step = trainer.args.steps_per_generation if trainer.model.training else 1
        wanted = -(-max(gather([len(made["prompt_ids"])])) // step) * step
        more = wanted - len(made["prompt_ids"])
        for name, filler in (("prompt_ids", [0]), ("completion_ids", [0]), ("logprobs", [0.0]), ("env_mask", [0])):
            made[name] += [list(filler) for _ in range(more)]
        made["row_sample"] += [0] * more
        made["row_share"] += [0.0] * more
        return made

    return roll_out
