"""Which of the things that can limit rollouts does so now, judged by counts alone. Pure.

What is broken comes first, then what holds back jobs that are admitted, from the last stage to the first, then what
holds back admission, then what is missing to admit. So the sentence names the cause and not what waits behind it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from prorl_mq.rules.memory import ADMIT_SHARE
from prorl_mq.schema.lifecycle import REFILLED
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.status import RunStatus
from prorl_mq.store.gauges import Gauges, StageGauge
from prorl_mq.store.images.records import ImageRecord
from prorl_mq.store.pools import BackendStatus
from prorl_mq.store.runs import TURN
from prorl_mq.store.workers import slots

WAITING_SHARE: Final = 0.25  # of a stage's slots that must wait before them; fewer come and go


class Limit(StrEnum):
    """The thing that limits."""

    REDIS = "redis"
    WORKERS = "workers"  # a stage has none, though work waits for it
    IMAGES = "images"
    FAILING = "failing"  # an image or task family fails again and again
    BACKENDS = "backends"
    INIT = "init"
    RUN = "run"
    EVAL = "eval"
    PAUSED = "paused"
    HELD = "held"  # back for a reason of each run's own: an upgrade, or a task family that no worker has
    TRAINER = "trainer"  # does not acknowledge
    QUOTA = "quota"
    SUBMISSION = "submission"
    NOTHING = "nothing"  # that could be told: it runs


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence on what limits now, with its figures, and what to change. `at_ms` is the time of the figures."""

    limit: Limit
    says: str
    change: str
    figures: Mapping[str, float]
    at_ms: int


class LimitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that the judgement rests on. `runs`: those that the reader may know by name."""

    now: Gauges
    runs: Sequence[RunStatus]
    images: Sequence[ImageRecord]  # that nodes fetch

    @property
    def backlog(self) -> int:
        return sum(self.now.backlog_by_tenant.values())

    @property
    def in_flight(self) -> int:
        return sum(self.now.in_flight_by_tenant.values())

    @property
    def waits(self) -> bool:
        """True if something could be done that is not."""
        return bool(self.backlog or self.in_flight)

    def stage(self, stage: Stage) -> StageGauge:
        return next(each for each in self.now.stages if each.stage is stage)

    @property
    def held_back(self) -> list[RunStatus]:
        """Runs with a backlog."""
        return [run for run in self.runs if run.backlog]


class _Found(msgspec.Struct, frozen=True):
    limit: Limit
    says: str
    change: str
    figures: Mapping[str, float]


def judge(facts: LimitFacts) -> Advice:
    """The first limit that the facts show."""
    found = next(found for rule in RULES for found in rule(facts))
    return Advice(limit=found.limit, says=found.says, change=found.change, figures=found.figures, at_ms=facts.now.at_ms)


def _redis(facts: LimitFacts) -> Iterator[_Found]:
    used, limit = facts.now.memory_bytes, facts.now.memory_limit_bytes
    share = used / limit if limit else 0.0
    no_room = [run for run in facts.held_back if "Redis uses" in run.why]
    if facts.waits and (share > ADMIT_SHARE or no_room):
        yield _Found(
            Limit.REDIS,
            f"Redis limits: it uses {used >> 20} of {limit >> 20} MiB ({share:.0%}), and no group begins above "
            f"{ADMIT_SHARE:.0%}, with what is in flight counted.",
            "Let the trainer acknowledge results, or give Redis more memory (maxmemory).",
            {"used_bytes": used, "limit_bytes": limit},
        )


def _workers(facts: LimitFacts) -> Iterator[_Found]:
    for gauge in reversed(facts.now.stages):
        waiting = gauge.load.queued + (facts.backlog if gauge.stage is Stage.INIT else 0)
        if waiting and not gauge.workers:
            what = "groups and jobs" if gauge.stage is Stage.INIT else "jobs"
            yield _Found(
                Limit.WORKERS,
                f"No {gauge.stage} worker is alive, and {waiting} {what} wait for one.",
                f"Start prorl-worker --stage {gauge.stage}; where some should run, see their logs and prorl-mq doctor.",
                {"waiting": waiting},
            )


def _images(facts: LimitFacts) -> Iterator[_Found]:
    fetched = [each for each in facts.images if each.state in {"fetching", "unpacking"}]
    if fetched and facts.now.delayed:
        first = fetched[0]
        yield _Found(
            Limit.IMAGES,
            f"Images limit: {len(fetched)} are being fetched ({first.name} on {first.node} is at "
            f"{first.done >> 20} of {first.total >> 20} MiB), and {facts.now.delayed} jobs are put aside until then.",
            "Fetch images before the run with prorl-mq images pull, and put their cache on storage that nodes share.",
            {"fetching": len(fetched), "delayed": facts.now.delayed},
        )


def _failing(facts: LimitFacts) -> Iterator[_Found]:
    shut = [each for each in facts.now.failing if each.open]
    if shut and facts.waits:
        yield _Found(
            Limit.FAILING,
            f"{len(shut)} {'image or task family fails' if len(shut) == 1 else 'images or task families fail'}, and "
            f"its jobs wait: {shut[0].brief}.",
            "Read the error with prorl-mq status; the jobs continue by themselves once a try succeeds.",
            {"failing": len(shut)},
        )


def _backends(facts: LimitFacts) -> Iterator[_Found]:
    run, backends = facts.stage(Stage.RUN), [each for _, each in facts.now.backends]
    if not (run.load.held or run.load.queued):
        return
    fit = [each for each in backends if _fit(each)]
    waiting = [worker.waits for worker in facts.now.workers if worker.stage is Stage.RUN and "backend" in worker.waits]
    if not fit or waiting:
        what = waiting[0] if waiting else "no backend of any pool takes jobs"
        yield _Found(
            Limit.BACKENDS,
            f"Backends limit: {len(fit)} of {len(backends)} take jobs, and {run.load.held} jobs in RUN wait for the "
            f"policy ({what}).",
            "Start inference servers or add those that run to the pool; see which of them are dead on the page.",
            {"backends": len(backends), "fit": len(fit), "jobs": run.load.held},
        )
    elif all(each.limit is not None and each.in_flight >= each.limit for each in fit):
        most = sum(each.limit or 0 for each in fit)
        yield _Found(
            Limit.BACKENDS,
            f"Backends limit: all {len(fit)} hold the jobs that they are allowed to ({most}), and {run.load.held} jobs "
            "are in RUN.",
            "Add backends to the pool, or raise their limit.",
            {"backends": len(backends), "most": most, "jobs": run.load.held},
        )


def _fit(backend: BackendStatus) -> bool:
    return backend.alive and backend.breaker != "open" and backend.state == "ready"


def _stages(facts: LimitFacts) -> Iterator[_Found]:
    for stage in (Stage.EVAL, Stage.RUN, Stage.INIT):
        gauge, limit = facts.stage(stage), Limit(stage.value)
        queued = gauge.load.queued + (facts.backlog if stage is Stage.INIT and not _quotas(facts) else 0)
        if gauge.slots and gauge.busy >= gauge.slots and queued >= max(1, WAITING_SHARE * gauge.slots):
            behind = "" if stage is not Stage.INIT else f", {facts.backlog} of them groups in the backlog"
            yield _Found(
                limit,
                f"{stage.upper()} limits: all {gauge.slots} slots hold a job and {queued} wait for one{behind}.",
                f"Start more {stage} workers, or give them more --slots where the machine has room.",
                {"slots": gauge.slots, "busy": gauge.busy, "queued": queued, "oldest_s": round(gauge.load.oldest_s, 1)},
            )


def _paused(facts: LimitFacts) -> Iterator[_Found]:
    runs = [run for run in facts.held_back if run.paused_until_ms is not None]
    others = [run for run in facts.held_back if run.paused_until_ms is None]
    jobs = facts.now.paused
    if (runs and not others) or (jobs and jobs >= facts.in_flight and not others):
        named = (
            f"{len(runs)} {_plural(len(runs), 'run')} ({runs[0].run_id})" if runs else f"{jobs} {_plural(jobs, 'job')}"
        )
        waiting = sum(run.backlog for run in runs)
        yield _Found(
            Limit.PAUSED,
            f"Everything that could run is paused: {named}, with {waiting} groups in the backlog.",
            _resume(runs[0].run_id) if runs else "Resume with prorl-mq resume job ID.",
            {"runs": len(runs), "jobs": jobs, "groups": waiting},
        )


def _resume(run: str) -> str:
    """Only a run's own tenant may."""
    tenant, _, name = run.rpartition(":")
    return f"Resume with prorl-mq resume run {name}{f', with the token of the tenant {tenant}' if tenant else ''}."


def _quotas(facts: LimitFacts) -> list[RunStatus]:
    """Runs that a quota of their own holds back, if it does so to all that wait."""
    held = [run for run in facts.held_back if "max_" in run.why or " at most " in run.why]
    return held if held and len(held) == len(facts.held_back) else []


def _quota(facts: LimitFacts) -> Iterator[_Found]:
    runs = _quotas(facts)
    if not runs:
        return
    first = runs[0]
    groups, unacked = sum(run.backlog for run in runs), sum(run.unacked_groups for run in runs)
    figures = {"runs": len(runs), "groups": groups, "unacked_groups": unacked}
    if "acknowledged" in first.why:
        yield _Found(
            Limit.TRAINER,
            f"The trainer limits: it has not acknowledged {unacked} groups, and {groups} wait ({first.run_id}: "
            f"{first.why}).",
            "Acknowledge results as they are used, speed the trainer up, or raise the quota of results.",
            figures,
        )
    else:
        yield _Found(
            Limit.QUOTA,
            f"A quota limits: {groups} groups wait ({first.run_id}: {first.why}).",
            f"Raise it with prorl-mq run {first.run_id} --max-jobs N, or none; a tenant's with prorl-mq tenant.",
            figures,
        )


def _held(facts: LimitFacts) -> Iterator[_Found]:
    """Names the reason that the first run itself gives, where all are held back and no other rule knows why."""
    held = facts.held_back
    if held and not any(run.why in {"", TURN} for run in held):
        groups = sum(run.backlog for run in held)
        yield _Found(
            Limit.HELD,
            f"{groups} {_plural(groups, 'group')} cannot begin ({held[0].run_id}: {held[0].why}).",
            "Do what that says; the groups begin by themselves.",
            {"runs": len(held), "groups": groups, "in_flight": facts.in_flight},
        )


def _submission(facts: LimitFacts) -> Iterator[_Found]:
    places = facts.now.stages
    free = sum(gauge.slots - gauge.busy for gauge in places)
    if facts.backlog or facts.stage(Stage.INIT).load.queued:
        return
    unacked = sum(run.unacked_groups for run in facts.runs)
    figures = {"in_flight": facts.in_flight, "free_slots": free, "unacked_groups": unacked}
    if not facts.in_flight and unacked:
        yield _Found(
            Limit.TRAINER,
            f"The trainer limits: {unacked} groups are ready and not acknowledged, and nothing else was submitted.",
            "See that the trainer reads results; submit the next batch while it trains on this one.",
            figures,
        )
    elif not facts.in_flight:
        yield _idle(facts, free, figures)
    elif slots(facts.now.workers, Stage.RUN) > facts.stage(Stage.RUN).busy:
        yield _Found(
            Limit.SUBMISSION,
            f"What was submitted limits: {facts.in_flight} jobs are in flight, no group waits, and {free} slots are "
            "free.",
            "Submit the next batch before this one has ended, or larger ones.",
            figures,
        )


def _idle(facts: LimitFacts, free: int, figures: Mapping[str, float]) -> _Found:
    """Nothing to do, which is no good news where what there was has failed."""
    ended = {name.partition(":")[2]: count for name, count in facts.now.counters.items() if name.startswith("jobs:")}
    jobs, lost = sum(ended.values()), sum(ended.get(outcome, 0) for outcome in REFILLED)
    figures = {**figures, "ended": jobs, "lost": lost}
    if not jobs:
        return _Found(Limit.SUBMISSION, f"Nothing was submitted: {free} slots are free.", "Submit a batch.", figures)
    if 2 * lost < jobs:
        says = f"All that was submitted has ended: {free} slots are free."
        return _Found(Limit.SUBMISSION, says, "Submit a batch.", figures)
    how = " or ".join(sorted(outcome for outcome in REFILLED if ended.get(outcome)))
    return _Found(
        Limit.FAILING,
        f"All that was submitted has ended, {lost} of {jobs} jobs so far as {how}: {free} slots are free.",
        "Read the errors in the samples' records or on the page (Failures of a run), then submit again.",
        figures,
    )


def _nothing(facts: LimitFacts) -> Iterator[_Found]:
    yield _Found(
        Limit.NOTHING,
        f"Nothing is short for now: {facts.in_flight} jobs are in flight and {facts.backlog} groups wait their turn.",
        "Look again in a while.",
        {"in_flight": facts.in_flight, "backlog": facts.backlog},
    )


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


RULES: Final[Sequence[Callable[[LimitFacts], Iterator[_Found]]]] = (
    _redis, _workers, _images, _failing, _backends, _stages, _paused, _quota, _held, _submission, _nothing,
)  # fmt: skip
