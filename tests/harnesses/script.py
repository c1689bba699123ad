"""A policy that answers by what it is asked, and what its rollout must have recorded of it, token by token."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prorl_mq.schema.trajectory import Trajectory, check
from tests.agent.chat import tooled
from workers.inference.protocol import Completion

Say = Callable[[str], str]  # from a prompt to what is sampled after it
_UNIT: Final = 2.0**-24


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One completion. No two tokens of a rollout have the same log-probability: it says which token it is."""

    prompt: Sequence[int]
    ids: Sequence[int]
    logprobs: Sequence[float]
    text: str


class PromptedPolicy:
    """Samples what `say` makes of the prompt. A token is a byte."""

    def __init__(self, say: Say) -> None:
        self.renderer = tooled()
        self.sampled: list[Sampled] = []
        self.say = say
        self._numbers = itertools.count(1)

    async def generate(self, prompt_ids: Sequence[int], *, max_tokens: int, **_: Any) -> Completion:
        text = self.say(self.renderer.text(prompt_ids))
        ids = [*self.renderer.ids(text), self.renderer.end_of_turn]
        cut = len(ids) > max_tokens
        ids = ids[:max_tokens]
        logprobs = [-next(self._numbers) * _UNIT for _ in ids]
        self.sampled.append(Sampled(prompt=list(prompt_ids), ids=ids, logprobs=logprobs, text=self.renderer.text(ids)))
        return Completion(
            ids=ids,
            logprobs=logprobs,
            finish_reason="length" if cut else "stop",
            backend="scripted",
            version=("7", "7"),
            prompt_tokens=len(prompt_ids),
        )


def turns_before(prompt: str) -> int:
    """Answers in a conversation so far."""
    return prompt.count("<|im_start|>assistant\n") - 1


def asked_last(prompt: str) -> str:
    """The last message, which the policy is to answer."""
    return prompt.rpartition("<|im_start|>user\n")[2]


def is_recorded_exactly(policy: PromptedPolicy, trajectory: Trajectory | None) -> list[str]:
    """Asserts that the sampled tokens are the trained ones, each in one row alone and behind the prompt that its policy
    saw. Returns the texts of the completions that are not trained.
    """
    assert trajectory is not None
    check(trajectory)
    trained = [
        (logprob, token)
        for row in trajectory.segments
        for token, logprob, mask in zip(row.response_ids, row.logprobs, row.loss_mask, strict=True)
        if mask
    ]
    assert len(set(trained)) == len(trained), "a token is trained twice"
    left: list[str] = []
    expected: set[tuple[float | None, int]] = set()
    for each in policy.sampled:
        pairs = set(zip(each.logprobs, each.ids, strict=True))
        if not pairs & set(trained):
            left.append(each.text)
            continue
        expected |= pairs
        assert any(_holds(row, each) for row in trajectory.segments), f"no row has it behind its prompt: {each.text}"
    assert expected == set(trained)
    assert sorted(left) == sorted(turn.text for turn in trajectory.turns if turn.left_out)
    return left


def _holds(row: Any, completion: Sampled) -> bool:
    whole, start = [*row.prompt_ids, *row.response_ids], len(completion.prompt)
    end = start + len(completion.ids)
    mask = (
        row.loss_mask[start - len(row.prompt_ids) : end - len(row.prompt_ids)] if start >= len(row.prompt_ids) else []
    )
    return whole[:start] == completion.prompt and whole[start:end] == completion.ids and all(mask) and bool(mask)
