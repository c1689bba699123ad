"""What may go wrong on a cluster. Each time: no job is lost, none counts twice, nothing is left, and `status` knows."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from redis.asyncio import Redis

from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from sandbox.lifetime import label
from tests.slurm.real.cluster import Cluster, Site
from tests.slurm.real.work import (
    WITHIN_S,
    expect_all,
    expect_first_attempts,
    jobs_boxes,
    submitted,
    until_leased,
    until_workers,
)
from tests.support.service import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("slurm-failures"),
    pytest.mark.parametrize("cluster", ["pgid"], indirect=True),  # kills less than what a task has started
]
INIT, EVAL = {"kind": "init", "least": 1}, {"kind": "eval", "least": 1}
SCORED = {**EVAL, "sandbox": "bubblewrap"}


async def prorl(site: Site, command: str, *words: str, code: int = 0) -> str:
    return await asyncio.to_thread(lambda: site.prorl(command, *words, code=code))


async def test_pre_empted_tasks_drain_and_are_replaced(site: Site, store: Store, cluster: Cluster) -> None:
    """A more urgent job takes the nodes: workers are warned, give back what they hold, and no attempt counts."""
    site.start(init=INIT, eval=EVAL, preempted={"kind": "run", "count": 3, "cpus": 5})
    await until_workers(store, 5)
    await submitted(store, "preempted", groups=4, n=5, run_ms=2500)
    await until_leased(store, 4)
    urgent = ["sbatch", "--parsable", "-J", "urgent", "-p", "urgent", "-N3", "--exclude=n1", "-c", "5"]
    job = cluster.run(*urgent, "-o", "/dev/null", "--wrap", "sleep 600").strip()
    cluster.until(lambda: cluster.states("urgent") == {job: "RUNNING"}, "the urgent job runs")
    assert set(site.tasks("preempted").values()) != {"RUNNING"}
    cluster.run("scancel", job)
    assert "scale preempted: " in await prorl(site, "scale")
    assert "standing by" not in await prorl(site, "scale")  # what has looked once holds nobody up
    records = await expect_all(store, "preempted", groups=4)
    expect_first_attempts(records)


async def test_tasks_that_run_again_come_back_as_other_workers(site: Site, store: Store, cluster: Cluster) -> None:
    """One is requeued by an administrator; one drains on Slurm's warning and asks for it, with exit code 75."""
    site.start(init=INIT, eval=EVAL, again={"kind": "run", "count": 2, "at_signal": "requeue"}, more={"kind": "run"})
    await until_workers(store, 5)
    await submitted(store, "again", groups=4, n=4, run_ms=1500)
    await until_leased(store, 6)
    one, other = sorted(site.tasks("again"))
    cluster.run("scontrol", "requeue", one)
    cluster.run("scancel", "--signal=USR1", "--batch", other)

    async def restarted() -> bool:
        names = [worker.name for worker in await living(store)]
        return all(any(f"{task}.1@" in name for name in names) for task in (one, other))

    await until(restarted, within_s=WITHIN_S)
    records = await expect_all(store, "again", groups=4)
    expect_first_attempts(records)


async def test_a_cancelled_task_loses_no_job(site: Site, store: Store, cluster: Cluster) -> None:
    """It is killed, and its jobs start again elsewhere."""
    site.start(init=INIT, eval=EVAL, killed={"kind": "run"}, more={"kind": "run"})
    await until_workers(store, 4)
    await submitted(store, "killed", groups=2, n=4, run_ms=8000)
    await until_leased(store, 8)
    [task] = site.tasks("killed")
    await prorl(site, "cancel", task)
    cluster.until(lambda: not site.processes("killed"), "its worker is dead")
    cluster.until(lambda: site.tasks("killed")[task] in {"CANCELLED", "FAILED"}, "and Slurm knows")
    await expect_all(store, "killed", groups=2)


async def test_a_lost_node_and_a_node_that_is_cut_off(site: Site, store: Store, cluster: Cluster) -> None:
    """One dies with all that it runs; the other's workers live on, though Slurm has started their task once more."""
    site.start(lost={"kind": "node", "count": 3, "cpus": 3, "sandbox": "bubblewrap"}, eval=SCORED)
    await until_workers(store, 7)
    task_on = {node: task for task, node in cluster.nodes_of(site.job("lost")).items()}
    dead, cut = sorted(set(task_on) - {"n1"})[:2]  # Redis and the API are on n1
    await submitted(store, "lost", groups=6, n=4, box=1, run_ms=3000)
    await until_leased(store, 6)
    cluster.admin("lose", dead)
    cluster.admin("part", cut)
    await expect_all(store, "lost", groups=6)

    texts = f"{task_on[cut]} runs twice: ", "its commits are fenced", f"node {dead} does not answer"
    said = await asyncio.to_thread(site.wait_for_status, *texts)
    assert f"run-{task_on[cut]}.0@{cut}" in said
    await submitted(store, "twins", groups=6, n=4, box=1, run_ms=1000)
    await expect_all(store, "twins", groups=6)

    cluster.admin("node", cut)
    cluster.until(lambda: not cluster.processes(f"SLURMD_NODENAME={cut}"), "the returning daemon kills what it knows")
    cluster.admin("node", dead)
    cluster.until(lambda: {cluster.node_state(node) for node in (dead, cut)} <= {"idle", "mixed"}, "both are back")
    await nothing_is_left(site, store, dead, cut)


async def nothing_is_left(site: Site, store: Store, *nodes: str) -> None:
    """The next workers of a node destroy the sandboxes that dead ones left there."""
    site.end()
    about = {"kind": "node", "sandbox": "bubblewrap"}
    site.start(**{f"sweep-{node}": {**about, "sbatch": [f"--nodelist={node}"]} for node in nodes})
    state = site.state

    async def clean() -> bool:
        return not any(jobs_boxes(state / node) for node in nodes)

    await until_workers(store, 2 * len(nodes))
    await until(clean, within_s=WITHIN_S)
    await prorl(site, "drain", "--wait")  # and with the keepers go the sandboxes that they had ready
    assert not any(label.labelled(state / node) for node in nodes)
    assert boxes_below(state) == []


def boxes_below(directory: Path) -> list[str]:
    """Command lines of processes that name a sandbox below a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"{directory}/" in line and "bwrap" in line:
                found.append(line)
    return found


async def test_a_task_drains_before_its_time_limit(site: Site, store: Store, cluster: Cluster) -> None:
    """Slurm warns up to a minute before it is due: so early that a busy machine may never see all workers at once."""
    site.start(init=INIT, eval=EVAL, limited={"kind": "run", "time": "02:00", "warn_s": 40}, more={"kind": "run"})
    await submitted(store, "limited", groups=8, n=4, run_ms=3000)
    cluster.until(lambda: set(site.tasks("limited").values()) == {"COMPLETED"}, "it drains", within_s=WITHIN_S)
    records = await expect_all(store, "limited", groups=8)
    expect_first_attempts(records)


async def test_tasks_whose_workers_never_start_are_named(site: Site, store: Store, cluster: Cluster) -> None:
    """One hangs in its setup, one fails in it; `scale` asks for no more of what fails each time."""
    site.scale = {"start_s": 1}
    site.start(
        hangs={"kind": "run", "setup": ["exec sleep 600"]},
        fails={"kind": "eval", "count": 3, "setup": ["false"], "least": 3, "idle_exit_s": 600},
    )
    cluster.until(lambda: list(site.tasks("fails").values()) == ["FAILED"] * 3, "all three fail")
    [hangs] = site.tasks("hangs")
    said = await asyncio.to_thread(
        site.wait_for_status,
        f"{hangs} (hangs) has run for",
        "no worker of it has been seen",
        "(fails): it failed",
    )
    assert f"{site.shared}/logs/{site.job('hangs')}-{hangs}.log" in said
    assert said.count("(fails): it failed") == 3
    assert "no more are requested" in await prorl(site, "scale")
    assert len(site.tasks("fails")) == 3


async def test_workers_go_on_without_the_shared_file_system(site: Site, store: Store, cluster: Cluster) -> None:
    """Its files are gone and every connection breaks: workers come back to the address that they know."""
    site.start(init=INIT, eval=EVAL, afloat={"kind": "run"})
    await until_workers(store, 3)
    await submitted(store, "afloat", groups=2, n=4, run_ms=1500)
    await until_leased(store, 4)
    there, away = site.shared / "rendezvous", site.shared / "away"
    there.rename(away)
    try:
        admin = admin_of(away)
        assert await admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") > 0
        await admin.aclose()
        await expect_all(store, "afloat", groups=2)
    finally:
        away.rename(there)
    assert "afloat" in await prorl(site, "status")
    assert set(site.tasks("afloat").values()) == {"RUNNING"}


def admin_of(directory: Path) -> Redis:
    """Redis's own user, whose password the deployment keeps for operators."""
    return connect(RedisSettings(rendezvous=directory / "admin.json"), connections=1)


async def test_a_node_with_a_full_disk_holds_nothing_up(site: Site, store: Store) -> None:
    """No file can grow there, logs included: what fails on it is tried again, and ends up where there is room."""
    node = {"kind": "node", "cpus": 3, "sandbox": "bubblewrap"}
    site.start(full={**node, "setup": ["ulimit -f 0"]}, room=node, eval=SCORED)
    await until_workers(store, 5)
    await submitted(store, "full", groups=4, n=4, box=1, run_ms=300)
    await expect_all(store, "full", groups=4)
    assert set(site.tasks("full").values()) == {"RUNNING"}
