"""A user's own filter, found by its entry point, decides what a batch keeps; the example is the one that is run."""

import asyncio
import logging
import sys
import threading
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.duties import apart, settle
from prorl_mq.errors import InvalidBatch
from prorl_mq.rules import filters
from prorl_mq.rules.filter_threads import EACH, FilterThreads
from prorl_mq.rules.filters import Candidate, FilterFailed
from prorl_mq.schema.dapo import Dapo, Predicate, Spread
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.sampler import TENANT, Sampler, prompts

pytestmark = pytest.mark.anyio
EXAMPLE = Path(__file__).parents[2] / "examples" / "dapo_filter"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example as an installer leaves it: its module and its entry points, on the path."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["prorl_mq.filters"] | {"broken": "half_solved:missing"}
    about = tmp_path / "half_solved-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[prorl_mq.filters]", *lines]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    filters._load.cache_clear()
    yield
    filters._load.cache_clear()
    sys.modules.pop("half_solved", None)


@pytest.fixture
async def sampler(settings: RedisSettings, keys: Keys) -> AsyncIterator[Sampler]:
    redis = connect(settings)
    made = Sampler(redis, keys)
    await made.prepare()
    yield made
    await redis.aclose()


async def finished(sampler: Sampler, rule: Predicate, *groups: tuple[float, ...]) -> None:
    names = [f"g{number}" for number in range(len(groups))]
    await sampler.submit("b", prompts(*names, n=4), Dapo(target_groups=len(groups), filter=rule))
    await sampler.calm()
    for name, rewards in zip(names, groups, strict=True):
        await sampler.finish_group(name, *rewards)
    await sampler.calm()


@pytest.mark.usefixtures("installed")
async def test_it_keeps_what_it_says(sampler: Sampler) -> None:
    rule = Predicate(name="half_solved", options={"within": 0.1})
    await finished(sampler, rule, (1, 1, 0, 0), (1, 0, 0, 0), (1, 1, 1, 1))
    assert await sampler.verdicts() == {"g0": "accepted", "g1": "filtered", "g2": "filtered"}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Predicate(name="half_solved", options={"within": "much"}), "the filter 'half_solved' raised ValueError"),
        (Predicate(name="broken"), "the filter 'broken' raised AttributeError"),
    ],
)
async def test_a_group_whose_filter_fails_has_a_record_that_says_so(
    sampler: Sampler, rule: Predicate, says: str
) -> None:
    """No silent drop, and settlement continues."""
    await finished(sampler, rule, (1, 1, 0, 0))
    [record] = await sampler.records()
    assert record.verdict == "failed"
    assert says in (record.reason or "")
    assert (await sampler.reports())["b"].failed.count == 1


async def test_a_group_for_whose_filter_no_thread_is_free_stays_due_and_the_others_of_its_run_do_not(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is judged later, and never failed for calls that other groups have made."""
    caplog.set_level(logging.CRITICAL)
    returning, threads = threading.Event(), FilterThreads()

    def keep(_candidate: Candidate, options: dict[str, Any]) -> bool:
        return not options or returning.wait(60)

    monkeypatch.setattr(filters, "_load", lambda _name: keep)
    monkeypatch.setattr(filters, "_threads", threads)
    monkeypatch.setattr(filters, "names", lambda: ["own"])
    monkeypatch.setattr(apart, "LEFT_OUT_S", 0.01)
    monkeypatch.setattr(filters, "PATIENCE_S", 0.02)
    candidate = Candidate(task_id="t", data_source="d", rewards=[], samples=[])
    for _ in range(EACH):
        with pytest.raises(FilterFailed):
            await filters.judge(Predicate(name="own", options={"hang": True}), candidate, tenant=TENANT)
    for batch, rule in (("own", Predicate(name="own")), ("plain", Spread())):
        await sampler.submit(batch, prompts(f"of-{batch}", n=4), Dapo(target_groups=1, filter=rule))
    await sampler.calm()
    for batch in ("own", "plain"):
        await sampler.finish_group(f"of-{batch}", 1, 1, 0, 0)
    async with asyncio.timeout(20):
        while await sampler.verdicts() != {"of-plain": "accepted"}:
            await sampler.settling.turn()
    for _ in range(3):
        await sampler.settling.turn()
    assert await sampler.verdicts() == {"of-plain": "accepted"}
    returning.set()
    async with asyncio.timeout(20):
        while await sampler.verdicts() != {"of-plain": "accepted", "of-own": "accepted"}:
            await sampler.settling.turn()


async def test_a_run_whose_groups_are_being_settled_has_no_second_task(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its groups are still due at the next turns: each of those would judge them once more."""
    returning, calls = threading.Event(), list[str]()

    def keep(candidate: Candidate, _options: dict[str, Any]) -> bool:
        calls.append(candidate.task_id)
        return returning.wait(60)

    monkeypatch.setattr(filters, "_load", lambda _name: keep)
    monkeypatch.setattr(filters, "_threads", FilterThreads())
    monkeypatch.setattr(filters, "names", lambda: ["own"])
    monkeypatch.setattr(filters, "PATIENCE_S", 60)
    monkeypatch.setattr(settle, "PATIENCE_S", 0.01)
    await sampler.submit("b", prompts("g", n=4), Dapo(target_groups=1, filter=Predicate(name="own")))
    await sampler.calm()
    await sampler.finish_group("g", 1, 1, 0, 0)
    async with asyncio.timeout(20):
        while not calls:
            await sampler.settling.turn()
    for _ in range(3):
        await sampler.settling.turn()
    returning.set()
    async with asyncio.timeout(20):
        while await sampler.verdicts() != {"g": "accepted"}:
            await sampler.settling.turn()
    assert len(calls) == 1


@pytest.mark.usefixtures("installed")
async def test_a_filter_that_is_not_installed_is_refused_with_the_nearest(sampler: Sampler) -> None:
    with pytest.raises(InvalidBatch, match="did you mean 'half_solved'"):
        await sampler.submit("b", prompts("g"), Dapo(target_groups=1, filter=Predicate(name="half_sovled")))
