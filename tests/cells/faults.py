"""Nodes of a cluster that die, and a whole service whose slot moves. Run by `make test-cells`."""

import contextlib
import itertools
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import RedisError

from prorl_mq.errors import RedisUnavailable
from prorl_mq.process import redis_server
from prorl_mq.schema.rendezvous import Place
from prorl_mq.store.server.primary import ask_node
from tests.cells.stand import SECRET, Cluster, cluster
from tests.ha.stand import Writers, queue_of
from tests.ha.test_service import undisturbed
from tests.ha.test_tls import certify

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(180)]


@contextlib.asynccontextmanager
async def writers_in(here: Cluster, namespace: str) -> AsyncIterator[Writers]:
    settings = here.settings(namespace)
    made = Writers(settings, queue_of(settings))
    try:
        yield made
    finally:
        await made.queue.redis.aclose()


async def forever(writers: Writers) -> None:
    for place in itertools.count():
        await writers.queue.submit(f"alone-{place}", batch=f"alone-{place}")


async def test_the_replica_of_a_killed_primary_is_followed() -> None:
    """What it had not got is lost, as on any cluster; nothing is there twice."""
    async with cluster() as here, writers_in(here, *here.namespaces(1)) as writers:
        async with writers.writing():
            await writers.more(50)
            writers.slowest_s = 0.0
            here.kill(0)
            await writers.more(200)
        print(f"pause {writers.slowest_s:.2f} s, lost {len(await writers.lost())} of {len(writers.acknowledged)}")
        assert await here.owner(writers.settings.namespace) == here.replica_of(0)
        assert await writers.repeated() <= {"already", "stored"}
        assert await writers.lost() == set(), "a repeat stores what was lost"


@pytest.mark.parametrize("covered", [False, True])
async def test_a_lost_slot_stops_its_namespace_alone_until_its_nodes_are_back(covered: bool) -> None:
    """The control: a cluster that wants all slots covered stops with it."""
    async with cluster(lines=f"cluster-require-full-coverage {'yes' if covered else 'no'}\n") as here:
        gone, other = here.namespaces(2)
        async with writers_in(here, gone) as lost, writers_in(here, other) as left:
            for writers in (lost, left):
                async with writers.writing():
                    await writers.more(20)
            here.kill(here.replica_of(0))
            here.kill(0)
            lost.store.outage_ms = 300
            with pytest.raises(RedisUnavailable):
                await lost.queue.submit("meanwhile")
            if covered:
                left.store.outage_ms = 300
                with pytest.raises(RedisUnavailable):
                    await forever(left)
            else:
                async with left.writing():
                    await left.more(50)
            await here.restart(0)
            lost.store.outage_ms = 30_000
            assert await lost.queue.submit("afterwards", batch="afterwards")
            assert await lost.lost() == set(), "its file has what was acknowledged"


async def test_no_process_ends_and_no_attempt_is_lost_when_the_slot_moves() -> None:
    async with cluster() as here, writers_in(here, *here.namespaces(1)) as writers:
        await undisturbed(writers, lambda: here.move(writers.settings.namespace), "stored")


async def test_a_cluster_that_speaks_tls_alone_is_followed_where_a_slot_goes() -> None:
    """All nodes want a client's certificate, on their bus too. The control: without one nobody gets in."""
    binary = redis_server.installed_binary()
    if binary is None:
        pytest.fail("no redis-server on PATH, and the embedded one is built without TLS: run `make setup`")
    async with (
        cluster(binary=binary, lines="tls-cluster yes\n", prepared=certify) as here,
        writers_in(here, *here.namespaces(1)) as writers,
    ):
        assert writers.settings.url.startswith("rediss+cluster://")
        async with writers.writing():
            await writers.more(50)
            await here.fail_over(writers.settings.namespace)
            await writers.more(50)
        place = await here.owner(writers.settings.namespace)
        assert place == here.replica_of(0)
        assert await writers.lost() == set()
        assert await writers.repeated() == {"already"}
        node, ca = here.nodes[place], here.nodes[place].query.partition("&")[0]
        with pytest.raises((RedisError, OSError)):
            await ask_node(f"rediss://{node.host}:{node.port}{ca}", ("PING",), place=Place(url="", secret=SECRET))
        await undisturbed(writers, lambda: here.fail_over(writers.settings.namespace), "stored")
