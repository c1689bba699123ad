"""What of a node's task outlives a worker, and what outlives the task: nothing.

On a cluster that knows the processes of a task by their group alone (`proctrack/pgid`), so that what has left the group
is killed by nobody but us. `make test-slurm` has them with `proctrack/cgroup`, too, where the machine lets it.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from prorl_mq.errors import NotFound
from prorl_mq.schema.messages import Stage
from prorl_mq.service import cancel, submit
from prorl_mq.store import pools
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from sandbox.lifetime.label import Label, labelled
from sandbox.lifetime.owner import OwnerKind
from tests.slurm.real.cluster import Cluster, Site
from tests.slurm.real.work import WITHIN_S, run_of, submitted, until_leased, until_workers
from tests.support.service import until
from tests.support.walk import Walker, vocabulary, walks

SOAK = "PRORL_SOAK" in os.environ
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("slurm-failures"),
    pytest.mark.parametrize("cluster", ["pgid", *(["cgroup"] if SOAK else [])], indirect=True),
]
KEEPER, POOL = "workers.node.keeper", "default:policy"


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def ancestors(pid: int) -> Iterator[int]:
    """Its parent first."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
        except OSError:
            return
        yield pid


def misplaced(site: Site, array: str, workers: Collection[int]) -> list[str]:
    """Keepers of an array's tasks that are no child of a task, or stand below a worker."""
    keepers = [pid for pid in site.processes(array) if KEEPER in command(pid)]
    above = {pid: list(ancestors(pid)) for pid in keepers}
    return [command(pid) for pid, line in above.items() if {*workers} & {*line} or "slurm.task" not in command(line[0])]


def boxes(site: Site) -> list[Label]:
    return [made for node in site.state.glob("*") for _, made in labelled(node) if made.alive]


def remains(site: Site, array: str) -> list[str]:
    """What of an array still runs, and the sandboxes of all nodes."""
    return [
        *map(command, site.processes(array)),
        *(made.owner for made in boxes(site)),
    ]


async def at_step(walker: Walker, step: int) -> None:
    async def there() -> bool:
        return walker.asked.get("w0", -1) >= step

    await until(there, within_s=WITHIN_S)


async def test_killed_workers_leave_the_keeper_and_their_sandbox_and_the_end_of_the_task_ends_both(
    site: Site, store: Store, cluster: Cluster, tmp_path: Path
) -> None:
    """The task is killed at last: nothing of it gets to say goodbye."""
    walk = {"options": ["--handlers walk"], **vocabulary(tmp_path / "model")}
    walk["setup"] = [f"export PRORL_TOKENIZER={walk.pop('PRORL_TOKENIZER')}"]
    node = {"kind": "node", "cpus": 3, "processes": 2, "sandbox": "bubblewrap", "slots": 2, **walk}
    async with (walker := Walker(0.2)).backend:
        await pools.remove(store, POOL, "http://127.0.0.1:1", drain=False)
        await pools.add(store, POOL, walker.backend.address)
        try:
            site.start(kept=node)
            await until_workers(store, 3)
            await submit.accept(store, "default", walks("kept", 1, 3000))
            await at_step(walker, 3)
            workers = {worker.pid: worker for worker in await living(store)}
            [box] = [made for made in boxes(site) if made.owner.startswith(f"{OwnerKind.JOB} ")]
            keepers = [pid for pid in site.processes("kept") if KEEPER in command(pid)]
            assert len(keepers) == 1
            assert misplaced(site, "kept", workers) == []
            for pid, worker in workers.items():  # its maker in INIT, too
                if worker.busy or worker.stage is Stage.INIT:
                    os.kill(pid, signal.SIGKILL)
            await at_step(walker, walker.asked["w0"] + 4)
            assert box.alive, "the sandbox went with a worker"
            assert KEEPER in command(keepers[0]), "the keeper went with a worker"
            steps = walker.steps_taken()
            assert steps == [*range(1, len(steps) + 1)], "a step was taken twice, or in another sandbox"
            assert walker.finished().total() - len(walker.finished()) <= 1, (
                "not only what was under way was sampled twice"
            )
            cluster.run("scancel", "--signal=KILL", "--batch", *site.tasks("kept"))
            cluster.until(lambda: not site.processes("kept"), "a process of the task still runs")
            cluster.until(lambda: not remains(site, "kept"), "its sandboxes are left")
        finally:  # what is left would be in the way of the tests behind it
            with contextlib.suppress(NotFound):
                await cancel.cancel(store, "run", run_of("chaos"))
            await pools.remove(store, POOL, walker.backend.address, drain=False)


@pytest.mark.skipif(not SOAK, reason="half a minute: `make test-slurm` plays this control")
async def test_a_keeper_that_a_worker_has_started_is_noticed(
    site: Site, store: Store, cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    """The control: it stands below the worker, and its end is Slurm's to choose. With groups it stays behind."""
    keeper = f"PRORL_RENDEZVOUS={site.file('worker')} setsid {sys.executable} -m {KEEPER} --sandbox bubblewrap"
    site.start(wrong={"kind": "run", "setup": [f"{keeper} </dev/null >/dev/null 2>&1 &"]})  # which becomes the worker
    await until_workers(store, 1)
    workers = {worker.pid: worker for worker in await living(store)}
    assert len(misplaced(site, "wrong", workers)) == 1
    cluster.run("scancel", *site.tasks("wrong"))
    cluster.until(lambda: set(site.tasks("wrong").values()) == {"CANCELLED"}, "Slurm takes it for ended")
    left = site.processes("wrong")
    try:
        stays = any(KEEPER in each for each in remains(site, "wrong"))
        assert stays is (request.node.callspec.params["cluster"] == "pgid")
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(not SOAK, reason="half a minute: `make test-slurm` runs it")
async def test_a_cancel_ends_sandboxes_though_slurm_would_wait(site: Site, store: Store, cluster: Cluster) -> None:
    """Slurm leaves a cancelled task ten minutes here, and its workers would use them: their jobs take as long."""
    conf = cluster.root / "slurm.conf"
    text = conf.read_text()
    conf.write_text(text.replace("KillWait=5\n", "KillWait=600\n"))
    cluster.run("scontrol", "reconfigure")
    try:
        assert "KillWait                = 600 sec" in cluster.run("scontrol", "show", "config")
        node = {"kind": "node", "cpus": 3, "count": 2, "slots": 10, "sandbox": "bubblewrap", "warn_s": 660}
        site.start(long=node)
        await until_workers(store, 4)
        await submitted(store, "long", groups=5, n=4, box=1, run_ms=600_000)
        await until_leased(store, 20)
        assert len(boxes(site)) >= 20
        site.prorl("cancel", "long")
        cluster.until(lambda: not site.processes("long"), "a process of the tasks still runs", within_s=WITHIN_S)
        cluster.until(lambda: not remains(site, "long"), "sandboxes are left", within_s=WITHIN_S)
        await cancel.cancel(store, "run", run_of("long"))
    finally:
        conf.write_text(text)
        cluster.run("scontrol", "reconfigure")
