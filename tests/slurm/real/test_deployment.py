"""A deployment on real Slurm, as it is meant to be used."""

import asyncio
import contextlib
import math
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from prorl_mq.schema.messages import Stage
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from sandbox.lifetime import label
from slurm.spec import TimeLimit
from slurm.tasks import clock_s, limit_s, task_of
from tests.slurm.real.cluster import ROOT, Cluster, Site
from tests.slurm.real.work import (
    WITHIN_S,
    expect_all,
    expect_first_attempts,
    jobs_boxes,
    node_of,
    settled,
    submitted,
    until_leased,
    until_workers,
)
from tests.support.service import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1200), pytest.mark.xdist_group("slurm")]
NODE = {"kind": "node", "cpus": 3}  # of eight: Slurm gives each task the node that does least
TOOLS = Path(os.environ.get("PRORL_SANDBOX_TOOLS", ROOT / ".state")).resolve()
SCORED = {"kind": "eval", "sandbox": "bubblewrap"}


def test_slurm_is_asked_whether_it_would_take_the_jobs(site: Site) -> None:
    site.arrays = {"huge": {"kind": "node", "cpus": 99}}
    assert "redis: Job" in site.prorl("submit", "--test-only", "redis")
    said = site.prorl("submit", "--test-only", code=1)
    assert "More processors requested than permitted" in said
    assert site.tasks("huge") == {}
    site.arrays = {}


@pytest.mark.parametrize(
    "time",
    ["90", "1:30", "90:30", "1:30:00", "2-6", "1-12:30", "1-12:30:15", "unlimited", "UNLIMITED", "INFINITE", "0"],
)
def test_a_time_means_to_us_what_it_means_to_slurm(cluster: Cluster, time: str) -> None:
    """Slurm counts in whole minutes, and rounds up."""
    msgspec.convert(time, TimeLimit)
    job = cluster.run("sbatch", "--parsable", "--hold", f"--time={time}", "-o", "/dev/null", "--wrap", "true").strip()
    said = cluster.run("squeue", "-h", "-j", job, "-o", "%l").strip()
    cluster.run("scancel", job)
    seconds = clock_s(said)
    ours = limit_s(time)
    assert (math.inf if seconds is None else seconds) == (ours if ours == math.inf else math.ceil(ours / 60) * 60)


async def test_a_job_runs_where_its_sandbox_is_and_is_scored_anywhere(site: Site, store: Store) -> None:
    """Three node tasks, each with its lane; TLS all the way."""
    site.start(node={**NODE, "count": 3, "sandbox": "bubblewrap"}, eval={**SCORED, "count": 2})
    await until_workers(store, 8)
    await submitted(store, "lanes", groups=6, n=4, box=1, run_ms=200)
    records = await expect_all(store, "lanes", groups=6)
    lanes = set()
    for text in (text for record in records for text in record.timelines.values()):
        rows = [line.split("\t") for line in text.splitlines()]
        claims = {row[2]: node_of(row[4]) for row in rows if row[1] == "claim"}
        assert claims["init"] == claims["run"], text
        lanes.add(claims["run"])
    assert len(lanes) == 3
    assert "eval" in site.prorl("status")

    async def none_left() -> bool:  # but what keepers have ready for the next job
        return not any(jobs_boxes(site.state / node) for node in lanes)

    await until(none_left, within_s=WITHIN_S)


async def test_two_tasks_of_a_node_share_its_lane_and_sandboxes(site: Site, store: Store, cluster: Cluster) -> None:
    """What one prepared the other may run; when one drains, its jobs continue in the other."""
    site.start(pair={**NODE, "count": 2, "sandbox": "bubblewrap", "sbatch": ["--nodelist=n2"]}, eval=SCORED)
    await until_workers(store, 5)
    tasks = cluster.nodes_of(site.job("pair"))
    assert sorted(tasks.values()) == ["n2", "n2"]
    await submitted(store, "pair", groups=6, n=4, box=1, run_ms=1500)
    await until_leased(store, 8)
    await asyncio.to_thread(site.prorl, "drain", "--wait", min(tasks))
    records = await expect_all(store, "pair", groups=6)
    expect_first_attempts(records)
    rows = [line.split("\t") for record in records for text in record.timelines.values() for line in text.splitlines()]
    prepared, ran = ({row[4] for row in rows if row[1] == "claim" and row[2] == stage} for stage in ("init", "run"))
    assert {member.task for worker in ran if (member := task_of(worker))} == set(tasks)
    assert {node_of(worker) for worker in prepared | ran} == {"n2"}


async def test_drained_tasks_finish_what_they_have_and_end_well(site: Site, store: Store) -> None:
    """All of one array are drained while they work: what they held is finished, what waited is done by others."""
    site.start(init={"kind": "init"}, eval={"kind": "eval"}, drained={"kind": "run", "count": 2}, more={"kind": "run"})
    await until_workers(store, 5)
    await submitted(store, "drain", groups=4, n=5, run_ms=1500)
    await until_leased(store, 4)
    await asyncio.to_thread(site.prorl, "drain", "--wait", "drained")
    assert set(site.tasks("drained").values()) == {"COMPLETED"}, site.logs()
    records = await expect_all(store, "drain", groups=4)
    expect_first_attempts(records)


async def test_a_drained_node_keeps_no_sandbox(site: Site, store: Store, cluster: Cluster) -> None:
    """Jobs that wait on its lane go back to INIT, and somebody is still there to destroy what they had."""
    site.start(kept={**NODE, "count": 2, "sandbox": "bubblewrap", "slots": 2}, eval=SCORED)
    await until_workers(store, 5)
    await submitted(store, "kept", groups=4, n=4, box=1, run_ms=2000)
    task, node = next(iter(cluster.nodes_of(site.job("kept")).items()))
    state, lane = site.state / node, store.keys.stage(Stage.RUN, node)

    async def waiting() -> bool:
        return int(await store.read("XLEN", lane)) > 2

    await until(waiting, within_s=WITHIN_S)
    await asyncio.to_thread(site.prorl, "drain", "--wait", task)
    cluster.until(lambda: site.tasks("kept")[task] == "COMPLETED", "it ends well")
    assert label.labelled(state) == []
    await expect_all(store, "kept", groups=4)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Into it the node's own programs are bound, so that no Python need be copied."""
    image = tmp_path / "image"
    for place in ("dev", "proc", "sys", "tmp", "root", "home", "usr", "etc", "var/tmp"):
        (image / place).mkdir(parents=True)
    for link in ("bin", "sbin", "lib", "lib64"):
        (image / link).symlink_to(f"usr/{link}")
    (image / "mark").touch()
    return image


async def test_a_task_runs_in_an_image(site: Site, store: Store, image: Path) -> None:
    """Its worker sees that file system, and is warned in it when the task is to drain."""
    binds = ",".join(["/usr", "/etc", str(ROOT), sys.base_prefix])
    setup = [f"export PATH={TOOLS}/apptainer/bin:$PATH APPTAINER_BIND={binds} APPTAINER_NO_PRIVS=1"]
    about = {"kind": "run", "image": str(image), "setup": setup}
    site.start(init={"kind": "init"}, eval={"kind": "eval"}, inside=about)
    await until_workers(store, 3)
    [worker] = [worker for worker in await living(store) if worker.stage is Stage.RUN]
    assert sees(worker.pid, "mark")
    await submitted(store, "inside", groups=2, n=4, run_ms=500)
    await expect_all(store, "inside", groups=2)
    await asyncio.to_thread(site.prorl, "drain", "--wait", "inside")
    assert set(site.tasks("inside").values()) == {"COMPLETED"}


def sees(pid: int, path: str) -> bool:
    """Whether a process has this file in its own file system."""
    return Path(f"/proc/{pid}/root", path).exists()


async def test_the_number_of_tasks_follows_the_work(site: Site, store: Store, cluster: Cluster) -> None:
    """Nothing runs until there is work; a dead supervisor changes nothing, and the next one takes over."""
    site.scale = {"down_s": 5, "step": 4}
    common = {"warn_s": 40, "slots": 2, "sandbox": "none", "options": ["--handlers chaos"]}
    site.arrays = {
        "init": {"kind": "init", "least": 1, **common}, "elastic": {"kind": "run", "most": 3, **common},
        "eval": {"kind": "eval", "least": 1, **common},
    }  # fmt: skip
    watch = await supervisor(site)
    try:
        await until_workers(store, 2)
        assert site.tasks("elastic") == {}
        await submitted(store, "scale", groups=4, n=4, run_ms=4000)
        cluster.until(lambda: len(site.tasks("elastic")) == 3, "three tasks")
        watch.send_signal(signal.SIGKILL)
        await watch.wait()
        watch = await supervisor(site)
        await expect_all(store, "scale", groups=4)
        cluster.until(lambda: not cluster.nodes_of(site.job("elastic")), f"the tasks go\n{site.logs()}")
        assert len(site.tasks("elastic")) == 3, "nothing is asked for twice"
        assert len(cluster.nodes_of(site.job("init"))) == len(cluster.nodes_of(site.job("eval"))) == 1
    finally:
        with contextlib.suppress(ProcessLookupError):
            watch.send_signal(signal.SIGTERM)
        assert await watch.wait() in {0, -signal.SIGKILL}


async def supervisor(site: Site) -> asyncio.subprocess.Process:
    argv = [sys.executable, "-m", "slurm", "scale", "--watch", "--spec", str(site.spec)]
    with (site.shared / "logs" / "scale.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(*argv, env=site.env, stdout=log, stderr=log)


async def test_redis_may_move_while_jobs_run(site: Site, store: Store, cluster: Cluster) -> None:
    """Its job is requeued: it comes back at another address with the same data, and everybody finds it."""
    site.start(init={"kind": "init"}, eval={"kind": "eval"}, run={"kind": "run"})
    await until_workers(store, 3)
    await submitted(store, "moved", groups=3, n=4, run_ms=2000)
    await until_leased(store, 4)
    before = site.file("worker").read_text()
    [job] = [task for task, state in cluster.states(site.job("redis")).items() if state == "RUNNING"]
    cluster.run("scontrol", "requeue", job)
    cluster.until(lambda: site.file("worker").read_text() != before, "Redis is back")
    await expect_all(store, "moved", groups=3, attempts=None)
    await settled(store)
