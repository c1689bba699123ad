"""TRL: a `rollout_func` for `GRPOTrainer`, whose rollouts the service makes.

    GRPOTrainer(..., rollout_func=rollout_func(url, task_of), reward_funcs=[rewards])

`task_of` makes a task of a prompt as the data set has it. TRL repeats each prompt; repeats next to each other become
one group. TRL makes importance ratios of the log-probabilities given here only with `use_vllm`.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from prorl_mq.client import AsyncClient
from prorl_mq.client.rollouts import Rollouts
from prorl_mq.converters.rollout import Rollout, logprobs
from prorl_mq.schema.messages import Sampling, Task

Output = dict[str, list[Any]]


def rollout_func(
    url: str, task_of: Callable[[Any], Task], *, run_id: str = "trl", token: str | None = None
) -> Callable[[Sequence[Any], Any], Output]:
    """What TRL calls with its prompts and itself."""

    def roll_out(prompts: Sequence[Any], trainer: Any) -> Output:
        args = trainer.args
        sampling = Sampling(temperature=args.temperature, top_p=args.top_p, max_tokens=args.max_completion_length)
        groups = [(prompt, len(list(same))) for prompt, same in itertools.groupby(prompts)]

        async def ask() -> list[Rollout]:
            async with AsyncClient(url, token=token) as client, Rollouts(client, run_id) as rollouts:
                asked = (rollouts.of(task_of(prompt), n=n, sampling=sampling) for prompt, n in groups)
                return [each for group in await asyncio.gather(*asked) for each in group]

        return output(asyncio.run(ask()))

    return roll_out


def output(found: Sequence[Rollout]) -> Output:
    """TRL takes one row a sample: it is drawn by its share of the sample's trained tokens."""
    drawn = [each.rows[each.drawn] for each in found]
    return {
        "prompt_ids": [list(row.prompt_ids) for row in drawn],
        "completion_ids": [list(row.response_ids) for row in drawn],
        "logprobs": [logprobs(row) for row in drawn],
        "env_mask": [list(row.loss_mask) for row in drawn],  # 0: what the environment said
        "reward": [each.reward for each in found],
    }


def rewards(completions: Sequence[Any], reward: Sequence[float], **_: Any) -> list[float]:
    """The reward function to give to TRL: what EVAL said."""
    del completions
    return list(reward)
