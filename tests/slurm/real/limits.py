"""Redis and API whose own jobs end by their time limit, again and again. Run by `make test-slurm`: it takes minutes."""

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Iterator

import pytest

from prorl_mq.clock import monotonic
from prorl_mq.store import pools
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from tests.slurm.real.cluster import Cluster, Site, served
from tests.slurm.real.test_deployment import TOOLS, supervisor
from tests.slurm.real.work import expect_all, expect_first_attempts, node_of, submitted, until_workers

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900), pytest.mark.xdist_group("slurm")]
LIMITS = ["1:00", "2:00"]
TIMES = 2  # that each of both passes from one job to the next


@pytest.fixture
def limited(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A deployment of the name that the others have, in another directory. Its parameter: the limit of its servers."""
    shared = cluster.root.parent / "l"
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir()
    site = Site(cluster, shared)
    site.server_time = request.param
    try:
        with served(site) as site:
            yield site
    finally:
        site.prorl("cancel")
        site.arrays, site.watch_time = {}, ""


@pytest.fixture
async def its_store(limited: Site) -> AsyncIterator[Store]:
    settings = RedisSettings(rendezvous=limited.file("ingress"))
    redis, waiting = connect(settings), connect(settings)
    yield Store(redis, Keys(), name="trainer", outage_ms=60_000, waiting=waiting)
    await redis.aclose()
    await waiting.aclose()


@pytest.mark.parametrize("limited", LIMITS, indirect=True)
async def test_servers_are_followed_by_others_before_their_limit(limited: Site, its_store: Store) -> None:
    """Work continues over two of each. Another deployment of the name keeps its own."""
    site, store = limited, its_store
    await pools.add(store, "default:policy", "http://127.0.0.1:1")
    site.scale = {"every_s": 2}
    site.start(init={"kind": "init"}, eval={"kind": "eval"}, run={"kind": "run"})
    watch = await supervisor(site)
    files = [site.file("worker"), site.file("trainer")]
    seen = [{file.read_text()} for file in files]
    waits, rounds = list[float](), 0
    writing = asyncio.create_task(_writing(store, waits))
    try:
        await until_workers(store, 3)
        while min(map(len, seen)) <= TIMES:
            name = f"limits-{rounds}"
            await submitted(store, name, groups=2, n=4, run_ms=500)
            await expect_all(store, name, groups=2, attempts=None)
            rounds += 1
            for found, file in zip(seen, files, strict=True):
                found.add(file.read_text())
            await asyncio.sleep(2)
    finally:
        writing.cancel()
        watch.terminate()
        await watch.wait()
    logs = site.logs()
    handed = logs.count("handed over to job")
    states = {name: list(site.cluster.states(site.job(name)).values()) for name in ("redis", "api")}
    print(f"{rounds} runs over {states}, {handed} hand-overs; longest wait of a writer {max(waits):.1f} s")
    assert not {"FAILED", "TIMEOUT"} & {state for each in states.values() for state in each}


async def _writing(store: Store, waits: list[float]) -> None:
    """One write after the other, and how long each has taken."""
    for version in itertools.count(1):
        began = monotonic()
        await store.announce("p", version, "keep", "")
        waits.append(monotonic() - began)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("shared", [False, True])
async def test_two_tasks_of_a_node_that_see_their_own_scratch_alone(
    site: Site, store: Store, cluster: Cluster, shared: bool
) -> None:
    """As where Slurm gives each job a /tmp or a $SLURM_TMPDIR of its own: each task has a lane. The control: one that
    both share.
    """
    where = "" if shared else "/job_$SLURM_JOB_ID"
    line = f"export SLURM_TMPDIR={site.shared}/private{where}"
    node = {"kind": "node", "cpus": 3, "count": 2, "sandbox": "bubblewrap", "setup": [line]}
    site.scratch = "$SLURM_TMPDIR"
    try:
        site.start(pair={**node, "sbatch": ["--nodelist=n2"]}, eval={"kind": "eval", "sandbox": "bubblewrap"})
        await until_workers(store, 5)
        assert sorted(cluster.nodes_of(site.job("pair")).values()) == ["n2", "n2"]
        name = f"private-{shared}"
        await submitted(store, name, groups=6, n=4, box=1, run_ms=200)
        records = await expect_all(store, name, groups=6)
    finally:
        site.scratch = f"{site.shared}/scratch"
    expect_first_attempts(records)
    rows = [line.split("\t") for record in records for text in record.timelines.values() for line in text.splitlines()]
    assert len({node_of(row[4]) for row in rows if row[1] == "claim" and row[2] == "run"}) == (1 if shared else 2)


@pytest.mark.parametrize("limited", ["1-00:00"], indirect=True)
async def test_the_supervisor_is_a_chain_of_jobs(limited: Site, its_store: Store, cluster: Cluster) -> None:
    """With limits of a minute. One is killed together with Redis, the next one as soon as it holds the lock. The one
    behind that brings Redis back. Then one after the other reaches its limit. `cancel` ends the chain and the rest.
    """
    site, store = limited, its_store
    await pools.add(store, "default:policy", "http://127.0.0.1:1")
    site.watch_time = "1:00"
    site.scale = {"every_s": 1}
    site.arrays = {
        name: {"kind": name, "least": 1, "sandbox": "none", "slots": 4, "warn_s": 40, "options": ["--handlers chaos"]}
        for name in ("init", "run", "eval")
    }
    assert "watch: " in site.prorl("submit", "watch")
    assert "is already there" in site.prorl("submit", "watch")
    await until_workers(store, 3)
    file = site.shared / "watch" / "supervisor.json"
    before = json.loads(file.read_text())
    address = site.file("worker").read_text()
    cluster.run("scancel", "--signal=KILL", "--batch", before["job"])
    for job in running(site, "redis"):
        cluster.run("scancel", "--signal=KILL", "--batch", job)
    cluster.until(lambda: json.loads(file.read_text())["job"] not in {"", before["job"]}, "the next one takes over")
    second = json.loads(file.read_text())
    cluster.run("scancel", "--signal=KILL", "--batch", second["job"])
    cluster.until(lambda: site.file("worker").read_text() != address, f"Redis is back\n{site.logs()}")
    holders = [before["job"], second["job"]]
    while len(holders) < 5:
        now = json.loads(file.read_text())
        if now["job"] and now["job"] != holders[-1]:
            holders.append(now["job"])
            await submitted(store, f"chain-{now['job']}", groups=2, n=4, run_ms=200)
            await expect_all(store, f"chain-{now['job']}", groups=2, attempts=None)
        assert len(running(site, "watch")) <= 2, "one that acts, and the next one"
        await asyncio.sleep(0.5)
    assert holders == sorted(set(holders), key=int), "one after the other"
    assert json.loads(file.read_text())["term"] == before["term"] + 4
    assert len(running(site, "redis")) == len(running(site, "api")) == 1, "nobody has asked for them twice"
    told = json.loads(site.prorl("status", "--json"))["history"]
    texts = [f"{event['about']}: {event['text']}" for event in told]
    for holder in holders[2:]:  # the second may not have written that it has taken over
        assert sum(f"job {holder} on" in text and "takes over" in text for text in texts) == 1, texts
    [lost] = [text for text in texts if "(redis): has ended" in text]
    again = next(text for text in texts if text.startswith("redis: submitted again as "))
    assert f"{again.split()[-1]} (redis): runs on n1" in texts[texts.index(again) :]
    assert "it failed" in lost
    site.prorl("cancel")
    names = {site.job(name) for name in ("redis", "api", "watch", *site.arrays)}
    cluster.until(lambda: not names & set(cluster.run("squeue", "-h", "-o", "%j").split()), "all has ended")
    cluster.until(lambda: not site.processes("watch"), "its process, too")
    assert not names & set(cluster.run("squeue", "-h", "-o", "%j").split()), "nothing was asked for again"


def running(site: Site, name: str) -> list[str]:
    return [task for task, state in site.cluster.states(site.job(name)).items() if state == "RUNNING"]


async def test_apptainer_by_the_page_alone(site: Site, store: Store) -> None:
    """Its program and base image are in `shared`/tools, as `install-tools` puts them there; jobs get it by one word."""
    tools = site.shared / "tools"
    for part in ("apptainer", "images"):
        assert (TOOLS / part).exists(), "run `make sandbox-tools`"
    tools.symlink_to(TOOLS)
    known = site.env.pop("PRORL_SANDBOX_TOOLS", None)
    try:
        about = {"sandbox": "apptainer", "slots": 2}
        site.start(node={"kind": "node", "cpus": 3, **about}, eval={"kind": "eval", **about})
        await until_workers(store, 3)
        await submitted(store, "apptainer", groups=1, n=4, box=1, run_ms=200)
        await expect_all(store, "apptainer", groups=1, attempts=0)
        [node] = site.cluster.nodes_of(site.job("node")).values()
        assert any((site.state / node / "sandboxes").iterdir()), "the keeper has others ready"
        await asyncio.to_thread(site.prorl, "cancel", *site.arrays)
    finally:
        tools.unlink()
        if known is not None:
            site.env["PRORL_SANDBOX_TOOLS"] = known
