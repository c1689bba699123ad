"""One backend over several nodes of one job."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from prorl_mq.store import pools
from prorl_mq.store.store import Store
from tests.slurm.real.cluster import Cluster, Site
from tests.slurm.real.work import WITHIN_S
from tests.support.service import until

pytestmark = [
    pytest.mark.skipif("PRORL_SOAK" not in os.environ, reason="half a minute: `make test-slurm` runs it"),
    pytest.mark.anyio,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("slurm"),
]
WIDE = "default:wide"
RANKS = Path(__file__).parent / "ranks.py"


def node_of(pid: int) -> str:
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(each.partition(b"=")[2].decode() for each in environ if each.startswith(b"SLURMD_NODENAME="))


def ranks(site: Site) -> dict[str, int]:
    """Node → its process of the backend."""
    found = {}
    for pid in site.processes("wide"):
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if argv[1:2] == [str(RANKS).encode()]:
            found[node_of(pid)] = pid
    return found


async def test_a_backend_runs_on_two_nodes_and_fails_as_one(site: Site, store: Store, cluster: Cluster) -> None:
    """It joins when both are there. When one dies, it leaves, and begins again on both."""
    words = ("{python}", str(RANKS), "{host}", "{port}", "{master_port}", "{rank}", "{nodes}")
    site.backends = {"wide": {"command": words, "nodes": 2, "pool": "wide", "cpus": 2}}

    async def joined(*without: str) -> bool:
        known = set[str]()
        if WIDE in await pools.names(store):
            known = {each.address for each in await pools.listing(store, WIDE)}
        return len(known) == 1 and not known & {*without}

    try:
        site.prorl("submit", "wide")
        await until(joined, within_s=WITHIN_S)
        [before] = [each.address for each in await pools.listing(store, WIDE)]
        there = ranks(site)
        assert len(there) == 2, "one on each node"
        os.kill(there[max(there)], signal.SIGKILL)
        await until(lambda: joined(before), within_s=WITHIN_S)
        again = ranks(site)
        assert set(again) == set(there)
        assert not set(again.values()) & set(there.values()), "both have begun again"
        await asyncio.to_thread(site.prorl, "cancel", "wide")
        cluster.until(lambda: not site.processes("wide"), f"it has ended\n{site.logs()}")
        assert await pools.listing(store, WIDE) == []
    finally:
        site.prorl("cancel", "wide")
        cluster.until(lambda: not site.processes("wide"), f"it has ended\n{site.logs()}")
        site.backends = {}
