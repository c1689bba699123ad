"""slime and miles: a custom generate function whose rollouts the service makes.

    --custom-generate-function-path prorl_mq.bridges.slime.generate
    --custom-reward-post-process-path prorl_mq.bridges.slime.post_process_rewards
    --dynamic-sampling-filter-path prorl_mq.bridges.slime.whole_groups

The service's address is PRORL_URL, or `prorl_url` of `--custom-config-path`, which may also have `prorl_run`,
`prorl_sources`, `prorl_data_source` and `prorl_model`. A row is `sample.metadata` (`--metadata-key`), with the
sample's prompt and label where it has none of its own. Written from slime's and miles' source of August 2026; neither
is in a package registry.

* Limits: `max_new_tokens` is slime's length of a response: rows are cut to it.
* Rows: a sample for each, all with one `rollout_id`. slime averages the tokens of a rollout first, and then rollouts,
  so a row's weight is its share. `post_process_rewards` makes advantages of rollouts and gives them to their rows;
  slime's own would count a rollout of several rows several times.
* A sample that was lost is `aborted`, has no reward and mask 0. `whole_groups` has slime draw another prompt in place
  of its group; without it `post_process_rewards` leaves it out of the baseline. `metadata["prorl_lost"]` has the
  cause.
"""

import copy
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from prorl_mq.bridges.tasks import task_of
from prorl_mq.bridges.theirs import address
from prorl_mq.client.rollouts import sampling_of, shared
from prorl_mq.converters.limits import FittedRow, fitted
from prorl_mq.converters.rollout import Rollout
from prorl_mq.errors import ProrlError
from prorl_mq.schema.messages import Purpose, Task

LOST = "prorl_lost"
SCALED = frozenset({"grpo", "gspo", "cispo"})  # estimators whose advantages are divided by the deviation
CENTRED = SCALED | {"reinforce_plus_plus_baseline"}


async def generate(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> list[Any]:
    """The rows of one rollout as slime's samples, or the sample itself as a lost one."""
    length = sampling_params.get("max_new_tokens")
    limits = {} if length is None else {"max_tokens": length, "max_tokens_per_turn": length}
    context = getattr(args, "rollout_max_context_len", None)
    if context:
        limits["max_context_tokens"] = context
    sampling = sampling_of({name: each for name, each in sampling_params.items() if name != "sampling_seed"}, **limits)
    url, token = (args.prorl_url, os.environ.get("PRORL_TOKEN")) if getattr(args, "prorl_url", None) else address()
    rollouts = await shared(
        url, getattr(args, "prorl_run", "slime"), token=token, model=getattr(args, "prorl_model", "")
    )
    purpose = Purpose.EVAL if evaluation else Purpose.TRAIN
    try:
        [found] = await rollouts.of(_task(args, sample), sampling=sampling, purpose=purpose)
        rows = fitted(found, response_length=length)
    except ProrlError as error:
        return [_lost(sample, f"{type(error).__name__}: {error}")]
    return [_row(sample, found, row) for row in rows]


def _task(args: Any, sample: Any) -> Task:
    row = {"prompt": sample.prompt, "label": sample.label, "id": str(sample.group_index), **(sample.metadata or {})}
    row.setdefault("data_source", getattr(args, "prorl_data_source", None))
    return task_of(row, getattr(args, "prorl_sources", None))


def _row(sample: Any, found: Rollout, row: FittedRow) -> Any:
    made = copy.deepcopy(sample)
    spans = found.trajectory.segments[row.row.segment].spans
    made.tokens, made.response_length = [*row.prompt_ids, *row.response_ids], len(row.response_ids)
    made.loss_mask, made.rollout_log_probs = row.loss_mask, row.logprobs
    made.response = "".join(turn.text for turn in found.trajectory.turns if turn.segment == row.row.segment)
    made.weight_versions = [span.version[1] for span in spans if span.version is not None]
    made.reward = found.reward
    made.rollout_id = sample.index
    truncated = row.cut or found.trajectory.truncated_by is not None
    made.status = sample.Status.TRUNCATED if truncated else sample.Status.COMPLETED
    made.metadata = {**(sample.metadata or {}), "prorl_job": found.sample.job_id, "prorl_share": row.share}
    return made


def _lost(sample: Any, cause: str) -> Any:
    """One masked token: slime's tensors need one."""
    made = copy.deepcopy(sample)
    made.tokens, made.response_length, made.loss_mask, made.rollout_log_probs = [0, 0], 1, [0], [0.0]
    made.reward, made.rollout_id, made.remove_sample = None, sample.index, True
    made.status = sample.Status.ABORTED  # slime scores no aborted sample
    made.metadata = {**(sample.metadata or {}), LOST: cause}
    return made


def whole_groups(args: Any, samples: Sequence[Any], **_: Any) -> bool:
    """A dynamic filter: a group that lost a sample is left out, and slime draws another prompt."""
    del args
    flat = [row for each in samples for row in (each if isinstance(each, list) else [each])]
    return not any(LOST in (each.metadata or {}) for each in flat)


def post_process_rewards(args: Any, samples: Sequence[Any], **_: Any) -> tuple[list[float], list[float]]:
    """Raw rewards and advantages of rows: made of rollouts, within the group of a prompt.

    A lost one has advantage 0, and the mean of its group for statistics: what leaves them as they are.
    """
    groups: dict[Any, dict[Any, float]] = {}
    for each in samples:
        if each.reward is not None:
            groups.setdefault(each.group_index, {})[_rollout(each)] = float(each.get_reward_value(args))
    counted = [list(groups.get(each.group_index, {}).values()) for each in samples]
    means = [statistics.fmean(rewards or [0.0]) for rewards in counted]
    raw = [
        mean if each.reward is None else groups[each.group_index][_rollout(each)]
        for each, mean in zip(samples, means, strict=True)
    ]
    if args.advantage_estimator not in CENTRED or not args.rewards_normalization:
        return raw, raw
    made = [reward - mean for reward, mean in zip(raw, means, strict=True)]
    if args.advantage_estimator in SCALED and args.grpo_std_normalization:
        spread = [statistics.stdev(rewards) if len(rewards) > 1 else 0.0 for rewards in counted]
        made = [each / (std + 1e-6) for each, std in zip(made, spread, strict=True)]
    return raw, made


def _rollout(sample: Any) -> Any:
    return sample.index if sample.rollout_id is None else sample.rollout_id
