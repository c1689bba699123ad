"""Replicated mode where every server and every Sentinel lets in only who shows a certificate."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from prorl_mq.process import redis_server
from prorl_mq.process.chain import Chain, ChainServer
from prorl_mq.schema import rendezvous
from prorl_mq.schema.rendezvous import Place
from prorl_mq.store.server.connection import RedisSettings
from prorl_mq.store.server.nodes import HOST
from prorl_mq.store.server.primary import ask_node
from slurm.servers.certificates import authority, issue
from tests.ha.stand import NAMESPACE, Stand, queue_of, stand
from tests.ha.test_service import served

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(120)]
SERVER = """\
port 0
tls-port {port}
tls-replication yes
tls-auth-clients yes
tls-cert-file {own}
tls-key-file {own}
tls-client-cert-file {client}
tls-client-key-file {client}
tls-ca-cert-file {ca}
"""
BY = ["rendezvous", "url"]
WHOLE = os.environ.get("PRORL_SOAK") == "1"  # the whole service; else its store alone


def certified(chain: Chain, directory: Path) -> None:
    certify((*chain.nodes, *chain.sentinels), directory)


def certify(servers: Iterable[ChainServer], directory: Path) -> None:
    """One authority; a certificate for all servers, and one for whoever connects, servers among them."""
    files = {name: directory / f"{name}.pem" for name in ("own", "client", "ca")}
    files["ca"].write_text(authority(directory / "tls"))
    issue(directory / "tls", "server", files["own"], address=HOST)
    issue(directory / "tls", "client", files["client"])
    for each in servers:
        each.scheme, each.lines = "rediss", SERVER.format(port=each.port, **files)
        each.query = "?ssl_ca_certs={ca}&ssl_certfile={client}&ssl_keyfile={client}".format(**files)


def announced(here: Stand, directory: Path) -> RedisSettings:
    """The same place by a file, as a deployment on Slurm has it: with the certificates in and beside it."""
    url, _, query = here.settings.url.partition("?")
    ca, client, _ = (word.partition("=")[2] for word in query.split("&"))
    (directory / "client.pem").write_bytes(Path(client).read_bytes())
    place = Place(url=url, secret=here.settings.password, ca=Path(ca).read_text(), client="client.pem")
    rendezvous.publish(directory / "worker.json", place)
    return RedisSettings(rendezvous=directory / "worker.json", namespace=NAMESPACE)


@pytest.mark.parametrize("by", BY if WHOLE else BY[:1])
async def test_a_service_with_client_certificates_follows_its_primary(by: str, tmp_path: Path) -> None:
    binary = redis_server.installed_binary()
    if binary is None:
        pytest.fail("no redis-server on PATH, and the embedded one is built without TLS: run `make setup`")
    async with stand(binary=binary, prepared=certified) as here:
        if by == "rendezvous":
            here.settings = announced(here, tmp_path)
            await here.queue.store.redis.aclose()
            here.queue = queue_of(here.settings)
        if WHOLE:
            await served(here, lambda: here.signal_primary(signal.SIGKILL))
        else:
            await here.replicated()
            async with here.writing():
                await here.more(50)
                here.signal_primary(signal.SIGKILL)
                await here.more(50)
            assert await here.lost() == set()
        await here.whole()  # clients follow the primary before the chain knows it, and before the old one is back
        for each in (here.chain.nodes[here.chain.order[0]], here.chain.sentinels[0]):
            ca = each.query.partition("&")[0]
            with pytest.raises((RedisError, OSError)):
                await ask_node(f"rediss://{HOST}:{each.port}{ca}", ("PING",), place=Place(url="", secret="x"))
            await each.ping()
