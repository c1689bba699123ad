"""Rows cut to the lengths that a trainer pads its tensors to.

Ids, mask and log-probabilities stay aligned, and no token is conditioned on another context than it was sampled in:

* a prompt that is longer than a trainer's prompts begins the response, with mask 0;
* a response ends at the trainer's limit, and behind its last trained token.
"""

from collections.abc import Sequence

import msgspec

from prorl_mq.converters.rollout import Rollout, TrainingRow, draw, require_text
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.trajectory import ExpertRoutes


class FittedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row within a trainer's lengths. `share`: of the trained tokens that are left of the sample."""

    row: TrainingRow
    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]  # 0.0 where the mask is 0
    share: float
    cut: bool  # trained tokens are missing
    routes: ExpertRoutes | None = None  # of its tokens, from the first one on; never more than there are tokens


def fitted(
    rollout: Rollout, *, prompt_length: int | None = None, response_length: int | None = None, images: bool = False
) -> list[FittedRow]:
    """The rows of a sample with a trained token inside the lengths, in order; None is no limit. Whole prompts are in
    them, so that all their images are. `images`: these are handed on, too.

    Raises `NotTrainable`, which names the lengths, where none is left, and for images that are not handed on.
    """
    if not images:
        require_text(rollout.trajectory)
    made = [(row, _cut(row, prompt_length, response_length)) for row in rollout.rows]
    kept = [(row, arrays) for row, arrays in made if any(arrays[2])]
    if not kept:
        longest = max(len(row.prompt_ids) for row, _ in made)
        raise NotTrainable(
            f"{rollout.sample.job_id}: no sampled token lies within a prompt of {prompt_length} and a response of "
            f"{response_length} tokens; its longest prompt has {longest}: raise the trainer's lengths"
        )
    trained = sum(sum(mask) for _, (_, _, mask, _) in kept)
    return [
        FittedRow(
            row=row, prompt_ids=prompt, response_ids=response, loss_mask=mask, logprobs=logprobs,
            share=sum(mask) / trained, cut=sum(mask) < sum(row.loss_mask),
            routes=row.routes and row.routes.until(len(prompt) + len(response)),
        )
        for row, (prompt, response, mask, logprobs) in kept
    ]  # fmt: skip


def drawn(rollout: Rollout, rows: Sequence[FittedRow]) -> FittedRow:
    """The one row for a trainer that takes no more, as `Rollout.drawn`."""
    return rows[draw(rollout.sample.job_id, [row.share for row in rows])]


def _cut(
    row: TrainingRow, prompt_length: int | None, response_length: int | None
) -> tuple[list[int], list[int], list[int], list[float]]:
    ids = [*row.prompt_ids, *row.response_ids]
    before = len(row.prompt_ids)
    mask = [0] * before + list(row.loss_mask)
    logprobs = [0.0] * before + [0.0 if each is None else each for each in row.logprobs]
    start = before if prompt_length is None else min(before, prompt_length)
    end = len(ids) if response_length is None else min(len(ids), start + response_length)
    while end > start and not mask[end - 1]:
        end -= 1
    return ids[:start], ids[start:end], mask[start:end], logprobs[start:end]
