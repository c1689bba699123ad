"""A trainer that knows of the service only its address: rollouts in, an update, new weights out, again."""

import asyncio
import math
import shutil
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from examples.train.learner_process import LearnerProcess
from examples.train.trails import question, trail
from prorl_mq.client import AsyncClient, ClosedGroup
from prorl_mq.clock import monotonic
from prorl_mq.converters.rollout import Rollout, rollouts, versions
from prorl_mq.schema.dapo import Dapo
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Limits, Purpose, Sampling, Task, Verdict

TOLERANCE: Final = 1e-3  # between the log-probabilities of rollout and trainer at equal weights
LOOK_S: Final = 0.05
SAMPLING: Final = Sampling(temperature=1.0, max_turns=7, max_tokens_per_turn=48, max_tokens=160, max_context_tokens=480)
LIMITS: Final = Limits(init_ms=120_000, run_ms=120_000, eval_ms=120_000, total_ms=900_000)


class NotEqual(Exception):
    """Rollout and trainer disagree about the probability of a token: nothing learnt from it would be right."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One training run. `first_version`: policy versions of a pool only grow, also from run to run."""

    run_id: str
    seed: int
    steps: int
    first_version: int
    policy: Path  # the weights to begin with
    weights: Path  # where this run's are left for the backends
    groups: int = 8  # with a spread of rewards, in each step
    n: int = 8  # samples in each
    held_out: int = 64  # trails that nothing is learnt from
    evaluated_each: int = 1  # steps
    pool: str = "policy"
    source: str = "trails"  # the task family


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one step came to. Step 0 is what the policy could before."""

    step: int
    version: int
    held_out: Mapping[str, float] = {}  # rewards by task; empty: not looked at
    train_reward: float | None = None  # mean over all groups that were judged
    accepted: int = 0
    filtered: int = 0
    reason: str = ""  # why the batch closed
    samples: int = 0
    sampled_by: tuple[int, int] | None = None  # the lowest and the highest policy version
    max_difference: float = 0.0
    compared_tokens: int = 0
    clipped: float = 0.0
    generated_tokens: int = 0  # by the backends while its batch was filled
    delivered_tokens: int = 0  # of these, in samples that the trainer was given
    seconds: float = 0.0

    @property
    def held_out_mean(self) -> float | None:
        return statistics.fmean(self.held_out.values()) if self.held_out else None


Tell = Callable[[Step], None]
Watch = Callable[[int], Awaitable[None]]
Generated = Callable[[], Awaitable[int]]


async def _nothing(_step: int) -> None: ...


async def _unknown() -> int:
    return 0


class Trainer:
    """One run. `watch` is called when the first group of a step is in. `generated`: tokens of all backends so far."""

    def __init__(
        self,
        client: AsyncClient,
        learner: LearnerProcess,
        plan: Plan,
        *,
        tell: Tell,
        watch: Watch = _nothing,
        generated: Generated = _unknown,
    ) -> None:
        self.client, self.learner, self.plan = client, learner, plan
        self._tell, self._watch, self._generated = tell, watch, generated
        self._version = plan.first_version - 1

    async def train(self) -> list[Step]:
        """Raises `NotEqual`."""
        plan = self.plan
        began = monotonic()
        await self.learner.load(plan.policy, seed=plan.seed)
        await self._publish()
        first = Step(step=0, version=self._version, held_out=await self._evaluate(0), seconds=monotonic() - began)
        self._tell(first)
        done = [first]
        for number in range(1, plan.steps + 1):
            done.append(await self._step(number))
            self._tell(done[-1])
        await self.client.cancel("run", plan.run_id)  # what the last batch carried over
        if not any(step.compared_tokens for step in done):
            raise NotEqual("no batch had a sample that one version alone had made: no probability could be compared")
        return done

    async def _step(self, number: int) -> Step:
        began, before = monotonic(), await self._generated()
        groups, reason = await self._filled(number)
        generated = await self._generated() - before
        accepted = [group for group in groups if group.record.verdict is Verdict.ACCEPTED]
        found = [(group, each) for group in accepted for each in await self._with_tokens(group)]
        learnt = await self.learner.learn([one for group, each in found for one in self._samples(group, each)])
        self._check(learnt)
        await self.client.ack(self.plan.run_id, [group.cursor for group in groups])
        told = [pair for _, each in found if (pair := versions([segment for _, segment in each.segments]))]
        await self._publish()
        looked = number % self.plan.evaluated_each == 0 or number == self.plan.steps
        return Step(
            step=number,
            version=self._version,
            held_out=await self._evaluate(number) if looked else {},
            train_reward=_mean_reward(groups),
            accepted=len(accepted),
            filtered=sum(group.record.verdict is Verdict.FILTERED for group in groups),
            reason=reason,
            samples=len(found),
            sampled_by=(min(low for low, _ in told), max(high for _, high in told)),
            max_difference=learnt["max_difference"],
            compared_tokens=int(learnt["compared_tokens"]),
            clipped=learnt["clipped"],
            generated_tokens=generated,
            delivered_tokens=sum(each.response_tokens for group in groups for each in group.record.samples),
            seconds=monotonic() - began,
        )

    async def _filled(self, number: int) -> tuple[list[ClosedGroup], str]:
        """A batch of groups that differ in their rewards, the others beside them, and why it closed."""
        plan, batch_id = self.plan, f"step-{number}"
        prompts = range((number - 1) * 6 * plan.groups, number * 6 * plan.groups)
        batch = BatchRequest(
            run_id=plan.run_id,
            batch_id=batch_id,
            groups=[GroupRequest(task=task_of(f"train-{plan.seed}-{each}", plan.source), n=plan.n) for each in prompts],
            sampling=msgspec.structs.replace(SAMPLING, seed=plan.seed),
            limits=LIMITS,
            pool=plan.pool,
            max_staleness=4,
            dapo=Dapo(target_groups=plan.groups, oversample=1.0),  # the rest would be a version old
        )
        await self.client.submit(batch)
        groups: list[ClosedGroup] = []
        async for closed in self.client.groups(plan.run_id, batch_id):
            if not groups:
                await self._watch(number)
            groups.append(closed)
        cursor, report = await self.client.report(plan.run_id, batch_id)
        await self.client.ack(plan.run_id, [cursor])
        return groups, report.reason

    async def _with_tokens(self, group: ClosedGroup) -> list[Rollout]:
        jobs = [each.job_id for each in group.record.samples if each.trajectory and not each.replaced]
        found = await asyncio.gather(*map(self.client.trajectory, jobs))
        return rollouts(group.record, dict(zip(jobs, found, strict=True)))

    def _samples(self, group: ClosedGroup, rollout: Rollout) -> list[dict[str, Any]]:
        """What the learner gets of a rollout. `version`: the one whose weights sampled all of it, if one's did."""
        place = next(n for n, each in enumerate(group.record.samples) if each.job_id == rollout.sample.job_id)
        told = versions([segment for _, segment in rollout.segments])
        return [
            {
                "prompt_ids": segment.prompt_ids,
                "response_ids": segment.response_ids,
                "loss_mask": segment.loss_mask,
                "logprobs": segment.logprobs,
                "advantage": group.record.advantages[place],
                "version": str(told[0]) if told and told[0] == told[1] else None,
            }
            for _, segment in rollout.segments
        ]

    def _check(self, learnt: Mapping[str, float]) -> None:
        if not learnt["max_difference"] <= TOLERANCE:  # also if it is no number
            raise NotEqual(
                "at equal weights a log-probability of the trainer's differs from the "
                f"rollout's by {learnt['max_difference']:.3g}, more than {TOLERANCE}: compare dtypes, temperature and "
                "--logprobs-mode of backend and trainer"
            )

    async def _evaluate(self, number: int) -> dict[str, float]:
        """Rewards of the held-out trails, sampled with the same seeds each time."""
        plan, batch_id = self.plan, f"held-out-{number}"
        tasks = [task_of(f"held-out-{each}", plan.source) for each in range(plan.held_out)]
        batch = BatchRequest(
            run_id=plan.run_id,
            batch_id=batch_id,
            groups=[GroupRequest(task=task) for task in tasks],
            sampling=msgspec.structs.replace(SAMPLING, seed=0),
            limits=LIMITS,
            pool=plan.pool,
            purpose=Purpose.EVAL,
        )
        await self.client.submit(batch)
        rewards: dict[str, float] = {}
        async for closed in self.client.groups(plan.run_id, batch_id):
            for each in closed.record.samples:
                if each.reward is not None:
                    rewards[closed.record.task_id] = each.reward
            await self.client.ack(plan.run_id, [closed.cursor])
        missing = {task.task_id for task in tasks} - rewards.keys()
        if missing:
            raise RuntimeError(f"{len(missing)} held-out trails got no reward, {min(missing)} among them")
        return rewards

    async def _publish(self) -> None:
        """The learner's weights become the pool's next version; returns when every backend serves them."""
        self._version += 1
        plan = self.plan
        directory = plan.weights / str(self._version)
        await self.learner.save(directory, version=self._version)
        await self.client.announce_policy_version(plan.pool, self._version, "keep", str(directory))
        while not await self._served():
            await asyncio.sleep(LOOK_S)  # the service tells how far it is when it is asked
        await asyncio.to_thread(shutil.rmtree, plan.weights / str(self._version - 1), ignore_errors=True)

    async def _served(self) -> bool:
        status = await self.client.policy(self.plan.pool)
        if not status.backends:
            raise RuntimeError(f"the pool {self.plan.pool!r} has no backend that could serve the policy")
        return all(each.step == "done" and each.serves == str(self._version) for each in status.backends)


def task_of(seed: str, source: str) -> Task:
    made = trail(seed)
    payload = {"question": question(made), "notes": dict(made.notes), "gold": made.gold}
    return Task(task_id=seed, data_source=source, payload=payload)


def _mean_reward(groups: Sequence[ClosedGroup]) -> float:
    """Of all that were judged: those that were kept alone would tell of the filter."""
    judged = [group.record.rewards for group in groups if group.record.verdict in {Verdict.ACCEPTED, Verdict.FILTERED}]
    return math.fsum(stats.mean for stats in judged if stats) / len(judged)
