"""One cluster and one deployment for each test process: starting them takes longer than most tests."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from prorl_mq.store import pools
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from tests.slurm.real.cluster import Cluster, Site, served
from tests.support.service import until


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """By its parameter, where a module gives one, Slurm knows which processes are a task's (`ProctrackType`)."""
    if shutil.which("slurmctld", path=os.environ["PATH"] + ":/usr/sbin") is None:
        missing = "Slurm is not installed: run `make slurm`"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="ps", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)  # sandboxes' users must be able to pass
        cluster = Cluster(Path(name) / "c")
        cluster.admin("up", "4", "8", getattr(request, "param", "linuxproc"))
        try:
            yield cluster
        finally:
            cluster.admin("down")
    assert cluster.processes() == []


@pytest.fixture(scope="session")
def session_site(cluster: Cluster) -> Iterator[Site]:
    shared = cluster.root.parent / "s"
    shared.mkdir()
    with served(Site(cluster, shared)) as site:
        yield site


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What Slurm and the tasks say of a failure, before the test's end cancels them."""
    report = yield
    sites = [each for each in getattr(item, "funcargs", {}).values() if isinstance(each, Site)]
    for site in sites if report.when == "call" and report.failed else ():
        report.sections.append(("Slurm", f"{site.logs()}\n{site.cluster.said()}"))
    return report


@pytest.fixture
def site(session_site: Site) -> Iterator[Site]:
    """The deployment without arrays, as it is left again."""
    session_site.scale = {}
    yield session_site
    session_site.end()


async def none_living(store: Store) -> bool:
    return not await living(store)


@pytest.fixture
async def store(site: Site) -> AsyncIterator[Store]:
    """The verbs under the ingress's role, by its rendezvous."""
    settings = RedisSettings(rendezvous=site.file("ingress"))
    redis, waiting = connect(settings), connect(settings)
    store = Store(redis, Keys(), name="trainer", outage_ms=60_000, waiting=waiting)
    await pools.add(store, "default:policy", "http://127.0.0.1:1")
    try:
        await until(lambda: none_living(store))  # those of the test before are taken for living as long as their lease
        yield store
    finally:
        await redis.aclose()
        await waiting.aclose()
