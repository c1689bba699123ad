"""Computes the results of an evaluation in one pass over its samples."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from prorl_mq.evaluation import statistics
from prorl_mq.evaluation.definition import Definition, KeptSet
from prorl_mq.evaluation.results import Cost, Failure, Results, SetResult, TaskResult
from prorl_mq.evaluation.samples import KeptSample, KeptTrajectory, PlacedSample
from prorl_mq.evaluation.statistics import Estimate
from prorl_mq.evaluation.suite import Prices
from prorl_mq.schema.messages import Outcome

NOTE_CHARS: Final = 300
FAILURES: Final = 3  # of a task that results name
N = TypeVar("N", int, float)
AtK = Callable[[int, int, int], float]  # of n, solved and k


class _Tally:
    """One pass over the samples of a set."""

    def __init__(self, kept: KeptSet) -> None:
        self.kept = kept
        self.rewards: list[list[float]] = [[] for _ in kept.tasks]
        self.failures: list[list[Failure]] = [[] for _ in kept.tasks]
        self.outcomes: Counter[str] = Counter()
        self.truncated: Counter[str] = Counter()
        self.lost: list[list[str]] = [[] for _ in kept.tasks]
        self.stage_seconds: Counter[str] = Counter()
        self.cost = Cost()
        self.tool_calls = self.tool_failures = self.retried = 0
        self.turns: list[int] = []
        self.tokens: list[int] = []
        self.seconds: list[float] = []

    def add(self, task: int, sample: KeptSample) -> None:
        self.cost.samples += 1
        self.outcomes[sample.outcome.value] += 1
        self.retried += len(sample.failed)
        self.stage_seconds.update(sample.seconds)
        tokens = self._spent(sample.trajectory) if sample.trajectory is not None else 0
        if sample.reward is None:
            self.lost[task].append(_reason(sample))
            return
        if len(self.rewards[task]) >= self.kept.n:
            return  # another start of the same evaluation brought it, too
        self.rewards[task].append(sample.reward)
        self.turns.append(sample.turns)
        self.tokens.append(tokens)
        self.seconds.append(sum(sample.seconds.values()))
        if sample.outcome is Outcome.TRUNCATED:
            self.truncated[sample.truncated_by or "unknown"] += 1
        if sample.reward < self.kept.solved_at:
            note = (sample.note or "")[:NOTE_CHARS]
            self.failures[task].append(
                Failure(job_id=sample.job_id, reward=sample.reward, outcome=sample.outcome.value, note=note)
            )

    def _spent(self, trajectory: KeptTrajectory) -> int:
        cost, sampled = self.cost, 0
        for turn in trajectory.turns:
            cost.turns += 1
            cost.prompt_tokens += turn.prompt_tokens
            cost.completion_tokens += turn.completion_tokens
            sampled += turn.completion_tokens
            cost.backend_seconds += turn.llm_seconds
            if turn.cached_tokens is not None:
                cost.cached_tokens = (cost.cached_tokens or 0) + turn.cached_tokens
            for call in turn.tool_calls:
                self.tool_calls += 1
                self.tool_failures += call.refused or not call.ok
                cost.tool_seconds += call.seconds
        return sampled

    def result(self, prices: Prices | None) -> SetResult:
        kept = self.kept
        solved = [sum(reward >= kept.solved_at for reward in each) for each in self.rewards]
        counts = [(len(each), right) for each, right in zip(self.rewards, solved, strict=True)]
        scored = sum(number for number, _ in counts)
        missing = kept.n * len(kept.tasks) - scored
        lost = self._lost()
        return SetResult(
            name=kept.name,
            weight=kept.weight,
            n=kept.n,
            solved_at=kept.solved_at,
            samples=kept.n * len(kept.tasks),
            scored=scored,
            solved=sum(solved),
            pass_at=_by_k(counts, kept.n, statistics.pass_at),
            pass_all=_by_k(counts, kept.n, statistics.pass_all),
            mean_reward=statistics.mean([statistics.spread(each)[0] for each in self.rewards if each]),
            worst=sum(solved) / (kept.n * len(kept.tasks)),
            best=(sum(solved) + missing) / (kept.n * len(kept.tasks)),
            outcomes=dict(self.outcomes),
            truncated=dict(self.truncated),
            tool_calls=self.tool_calls,
            tool_failures=self.tool_failures,
            retried=self.retried,
            without_result=lost,
            turns_mean=_mean(self.turns),
            tokens_mean=_mean(self.tokens),
            seconds_mean=_mean(self.seconds),
            cost=priced(msgspec.structs.replace(self.cost, stage_seconds=dict(self.stage_seconds)), prices),
            tasks=[self._task(place, right) for place, right in enumerate(solved)],
        )

    def _lost(self) -> dict[str, int]:
        """Why samples are missing, and how many: a task's last reasons, as earlier ones were made up for."""
        found: Counter[str] = Counter()
        for rewards, reasons in zip(self.rewards, self.lost, strict=True):
            if missing := self.kept.n - len(rewards):
                found.update(reasons[-missing:])
                found["not ended"] += max(0, missing - len(reasons))
        return {reason: count for reason, count in found.most_common() if count}

    def _task(self, place: int, solved: int) -> TaskResult:
        about, rewards = self.kept.tasks[place], self.rewards[place]
        return TaskResult(
            task_id=about.task_id,
            digest=about.digest,
            n=self.kept.n,
            scored=len(rewards),
            solved=solved,
            mean_reward=statistics.spread(rewards)[0] if rewards else None,
            failures=self.failures[place][:FAILURES],
        )


def compute(kept: Definition, samples: Iterable[PlacedSample]) -> Results:
    """The results of samples, read once."""
    tallies = {each.name: _Tally(each) for each in kept.sets}
    backends: set[str] = set()
    versions: set[str] = set()
    for placed in samples:
        tallies[placed.set].add(placed.task, placed.sample)
        trajectory = placed.sample.trajectory
        spans = [span for segment in trajectory.segments for span in segment.spans] if trajectory else []
        backends.update(span.backend for span in spans)
        versions.update(version for span in spans for version in span.version or ())
    sets = [each.result(kept.prices) for each in tallies.values()]
    return Results(
        suite=kept.suite,
        pool=kept.pool,
        run_id=kept.run_id,
        total=_total(sets, list(tallies.values()), kept.prices),
        sets=sets,
        backends=sorted(backends),
        versions=sorted(versions),
        models=kept.models,
        others=kept.others,
    )


def _total(sets: Sequence[SetResult], tallies: Sequence[_Tally], prices: Prices | None) -> SetResult:
    """All sets, their estimates weighted; an estimate is there where each set with a weight has it."""
    counted = [each for each in sets if each.weight]
    weight = sum(each.weight for each in sets)
    ks = sorted(set.intersection(*(set(each.pass_at) for each in counted)))
    scored = sum(each.scored for each in counted)
    means = [(each.weight, each.mean_reward) for each in counted if each.mean_reward is not None]
    turns, tokens, seconds = ([value for each in tallies for value in getattr(each, name)] for name in
                              ("turns", "tokens", "seconds"))  # fmt: skip
    return SetResult(
        name="total",
        weight=weight,
        n=max(each.n for each in sets),
        solved_at=None,
        samples=sum(each.samples for each in sets),
        scored=sum(each.scored for each in sets),
        solved=sum(each.solved for each in sets),
        pass_at=_weighted(counted, "pass_at", ks, scored),
        pass_all=_weighted(counted, "pass_all", ks, scored),
        mean_reward=statistics.weighted(means) if len(means) == len(counted) else None,
        worst=sum(each.weight * each.worst for each in sets) / weight,
        best=sum(each.weight * each.best for each in sets) / weight,
        outcomes=_sum([each.outcomes for each in sets]),
        truncated=_sum([each.truncated for each in sets]),
        tool_calls=sum(each.tool_calls for each in sets),
        tool_failures=sum(each.tool_failures for each in sets),
        retried=sum(each.retried for each in sets),
        without_result=_sum([each.without_result for each in sets]),
        turns_mean=_mean(turns),
        tokens_mean=_mean(tokens),
        seconds_mean=_mean(seconds),
        cost=_costs([each.cost for each in sets], prices),
    )


def _weighted(sets: Sequence[SetResult], name: str, ks: Sequence[int], scored: int) -> dict[int, Estimate]:
    found = {k: statistics.weighted([(s.weight, getattr(s, name)[k]) for s in sets], samples=scored) for k in ks}
    return {k: each for k, each in found.items() if each is not None}


def _by_k(counts: Sequence[tuple[int, int]], n: int, estimate: AtK) -> dict[int, Estimate]:
    found = {}
    for k in range(1, n + 1):
        enough = [(number, solved) for number, solved in counts if number >= k]
        values = [estimate(number, solved, k) for number, solved in enough]
        if (made := statistics.mean(values, samples=sum(number for number, _ in enough))) is not None:
            found[k] = made
    return found


def _costs(parts: Sequence[Cost], prices: Prices | None) -> Cost:
    cached = [each.cached_tokens for each in parts if each.cached_tokens is not None]
    made = Cost(
        samples=sum(each.samples for each in parts),
        turns=sum(each.turns for each in parts),
        prompt_tokens=sum(each.prompt_tokens for each in parts),
        cached_tokens=sum(cached) if cached else None,
        completion_tokens=sum(each.completion_tokens for each in parts),
        backend_seconds=sum(each.backend_seconds for each in parts),
        tool_seconds=sum(each.tool_seconds for each in parts),
        stage_seconds=_sum([each.stage_seconds for each in parts]),
    )
    return priced(made, prices)


def priced(cost: Cost, prices: Prices | None) -> Cost:
    """The cost with its money."""
    if prices is None:
        return cost
    cached = cost.cached_tokens or 0
    of_cached = prices.prompt if prices.cached is None else prices.cached
    money = (cost.prompt_tokens - cached) * prices.prompt + cached * of_cached
    money = (money + cost.completion_tokens * prices.completion) / 1e6
    return msgspec.structs.replace(cost, money=money, currency=prices.currency)


def _reason(sample: KeptSample) -> str:
    if sample.error is None:
        return sample.outcome.value
    return f"{sample.outcome.value}, {sample.error.cause or 'unknown'}: {sample.error.type}"


def _sum(parts: Sequence[Mapping[str, N]]) -> dict[str, N]:
    total: dict[str, N] = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total[name] + number if name in total else number
    return total


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
