"""The cases: which systems are measured, how they are set up, and how many jobs they get."""

from collections.abc import Sequence

import msgspec

from bench.queue.chains import LIBRARIES, Chain
from bench.queue.ours import Ours
from bench.queue.system import Case, Setting, System

OURS, FLOOR, WATCHED = "ours", "floor", "ours-watched"
# As many jobs as take a few seconds: enough to drown start-up effects, few enough to interleave many rounds.
JOBS = {"ardiq": 6000, "huey": 4000, "dramatiq": 3000, "saq": 2000, "taskiq": 1600, "streaq": 1200, "rq": 600}
FLOOR_JOBS, OUR_JOBS, BACKLOG = 40_000, 20_000, 1_000_000
QUICK_SHARE = 0.3


def peers() -> list[Case]:
    return [Case(name=library, system=library, jobs=JOBS[library]) for library in LIBRARIES]


def variants(system: str, jobs: int) -> list[Case]:
    """The same system with one thing changed in each; run when asked for by name."""
    case = Case(name=system, system=system, jobs=jobs, default=False, measures=("throughput",))
    found = [
        msgspec.structs.replace(case, name=f"{system}-memory", durability="none"),
        msgspec.structs.replace(case, name=f"{system}-always", durability="always"),
        msgspec.structs.replace(case, name=f"{system}-tcp", transport="tcp"),
        msgspec.structs.replace(case, name=f"{system}-100b", payload_bytes=100),
        msgspec.structs.replace(case, name=f"{system}-4kb", payload_bytes=4096),
        msgspec.structs.replace(case, name=f"{system}-1mb", payload_bytes=1 << 20, jobs=400),
        msgspec.structs.replace(case, name=f"{system}-4-workers", workers_per_stage=4),
        msgspec.structs.replace(case, name=f"{system}-16-workers", workers_per_stage=16),
        msgspec.structs.replace(case, name=f"{system}-backlog", backlog=BACKLOG, timeout_s=120.0),
    ]
    if system == OURS:
        found.append(msgspec.structs.replace(case, name=WATCHED, options={"viewers": "64"}, default=True))
        intake = msgspec.structs.replace(case, measures=("intake",), jobs=jobs // 2)
        for door in ("http", "stream"):
            for durability, ending in (("everysec", ""), ("none", "-memory"), ("always", "-always")):
                name = f"{system}-intake-{door}{ending}"
                options = {"door": door}
                found.append(msgspec.structs.replace(intake, name=name, durability=durability, options=options))
    return found


def all_cases() -> list[Case]:
    return [
        Case(name=FLOOR, system=FLOOR, jobs=FLOOR_JOBS),
        Case(name=OURS, system=OURS, jobs=OUR_JOBS),
        *peers(),
        *variants(OURS, OUR_JOBS),
        *variants(FLOOR, FLOOR_JOBS),
    ]


def chosen(only: Sequence[str], *, peers_only: bool, quick: bool) -> list[Case]:
    """The cases of one invocation. A name that ends in `*` stands for all that begin so."""
    known = all_cases()
    for name in only:
        if not any(matches(case.name, name) for case in known):
            raise ValueError(f"{name} is no case: {', '.join(case.name for case in known)}")
    found = [case for case in known if (any(matches(case.name, name) for name in only) if only else case.default)]
    if peers_only:
        found = [case for case in found if case.system != OURS]
    return [quicker(case) for case in found] if quick else found


def matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def quicker(case: Case) -> Case:
    """Fewer jobs, in whole groups of 8."""
    jobs = max(160, int(case.jobs * QUICK_SHARE) // 80 * 80)
    return msgspec.structs.replace(case, jobs=jobs, latency_jobs=40, backlog=case.backlog // 10)


def make_system(case: Case, setting: Setting) -> System:
    return Ours(case, setting) if case.system == OURS else Chain(case, setting)
