"""How often a prompt does not continue the one before it: by ids, as we do it, and by text, as chat routes do it.

    ops/vllm-serve.sh .state/models/tiny 8101
    python -m bench.inference.drift http://127.0.0.1:8101 .state/models/tiny

Both loops ask the same backend, which sees token ids alone. By ids, the next prompt is what was sent, what was sampled,
and the delta of a user's message. By text, the whole history is decoded, rendered and encoded again for each turn.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from prorl_mq.schema.messages import Sampling
from workers.agent.hermes import Message
from workers.agent.loading import load_renderer
from workers.agent.renderer import Renderer
from workers.agent.seeds import turn_seed
from workers.agent.tokens import TokenRecord
from workers.inference.assignment import FixedAssigner
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.probe import probe
from workers.inference.protocol import Completion, Policy

CONCURRENCY = 32


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Breaks of one loop. A boundary lies between two turns; a trajectory with a break is split or lost in training."""

    loop: str  # ids, text
    trajectories: int
    boundaries: int
    breaks: int
    broken_trajectories: int
    sampled_tokens: int


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One turn as the backend saw it."""

    sent: Sequence[int]
    sampled: Sequence[int]


class MakePolicy(Protocol):
    """A policy for one trajectory."""

    def __call__(self, name: str) -> Policy: ...


class Rollout:
    """One conversation: the same questions in both loops."""

    def __init__(self, policy: Policy, renderer: Renderer, number: int, turns: int, sampling: Sampling) -> None:
        self.policy, self.renderer, self.number, self.turns, self.sampling = policy, renderer, number, turns, sampling
        self.start = [Message(role="system", content="You tell stories."), self._question(0)]
        self.exchanges: list[Exchange] = []

    async def by_ids(self) -> None:
        record = TokenRecord(self.renderer.prompt(self.start))
        for turn in range(self.turns):
            completion = await self._sample(record.context, turn)
            record.sample(completion)
            record.insert(self.renderer.after(completion.ids, [self._question(turn + 1)]))

    async def by_text(self) -> None:
        history = list(self.start)
        for turn in range(self.turns):
            completion = await self._sample(self.renderer.prompt(history), turn)
            answer = Message(role="assistant", content=self.renderer.said(completion.ids))
            history += [answer, self._question(turn + 1)]

    async def _sample(self, prompt_ids: Sequence[int], turn: int) -> Completion:
        sent = tuple(prompt_ids)
        completion = await self.policy.generate(
            sent,
            max_tokens=self.sampling.max_tokens_per_turn,
            temperature=self.sampling.temperature,
            seed=turn_seed(self.sampling.seed, str(self.number), turn),
            stop_token_ids=self.renderer.stop_ids,
        )
        self.exchanges.append(Exchange(sent=sent, sampled=tuple(completion.ids)))
        return completion

    def _question(self, turn: int) -> Message:
        return Message(role="user", content=f"Tell part {turn} of story {self.number}.")


def breaks(exchanges: Sequence[Exchange]) -> int:
    """Prompts that do not start with the prompt before them and what was sampled there."""
    whole = [(*each.sent, *each.sampled) for each in exchanges]
    return sum(after.sent[: len(before)] != before for before, after in zip(whole, exchanges[1:], strict=False))


async def measure(
    loop: str, make_policy: MakePolicy, renderer: Renderer, *, trajectories: int, turns: int, sampling: Sampling
) -> Drift:
    """Runs one loop, `ids` or `text`."""
    rollouts = [
        Rollout(make_policy(f"{loop}-{number}"), renderer, number, turns, sampling) for number in range(trajectories)
    ]
    places = asyncio.Semaphore(CONCURRENCY)

    async def run(rollout: Rollout) -> None:
        async with places:
            await (rollout.by_ids() if loop == "ids" else rollout.by_text())

    async with asyncio.TaskGroup() as group:
        for rollout in rollouts:
            group.create_task(run(rollout))
    broken = [breaks(rollout.exchanges) for rollout in rollouts]
    return Drift(
        loop=loop,
        trajectories=trajectories,
        boundaries=trajectories * (turns - 1),
        breaks=sum(broken),
        broken_trajectories=sum(map(bool, broken)),
        sampled_tokens=sum(len(each.sampled) for rollout in rollouts for each in rollout.exchanges),
    )


async def drift(address: str, tokenizer: Path, *, trajectories: int, turns: int, sampling: Sampling) -> list[Drift]:
    """Both loops against a running backend that serves the model of `tokenizer`."""
    renderer = await load_renderer(tokenizer)
    async with InferenceClients() as clients:
        backend = (await probe(clients, address)).info

        def make_policy(name: str) -> Policy:
            return StickyPolicy(job_id=f"drift-{name}", token="1", assigner=FixedAssigner(backend), clients=clients)

        return [
            await measure(loop, make_policy, renderer, trajectories=trajectories, turns=turns, sampling=sampling)
            for loop in ("ids", "text")
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Prefix breaks by ids and by text")
    parser.add_argument("address")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--trajectories", type=int, default=500)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32, help="of a turn")
    parser.add_argument("--temperature", type=float, default=1.2)
    given = parser.parse_args()
    # Without a seed: a vLLM on a CPU dies of a seeded request whose prompt it takes in more than one step.
    sampling = Sampling(temperature=given.temperature, max_tokens_per_turn=given.tokens)
    found = asyncio.run(
        drift(given.address, given.tokenizer, trajectories=given.trajectories, turns=given.turns, sampling=sampling)
    )
    for each in found:
        print(
            f"{each.loop:5} {each.trajectories} trajectories, {each.boundaries} boundaries: {each.breaks} breaks in "
            f"{each.broken_trajectories} trajectories ({each.sampled_tokens} tokens sampled)"
        )


if __name__ == "__main__":
    main()
