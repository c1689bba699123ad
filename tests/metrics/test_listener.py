"""Each process has a listener of its own, which Prometheus finds by a file."""

import asyncio
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter

from prorl_mq.errors import ConfigurationError
from workers.metrics_listener import LOOPBACK, OFF, listening

pytestmark = pytest.mark.anyio


def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("seen", "Things.", registry=made).inc(3)
    return made


async def get(address: str, path: str = "/metrics") -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        return await client.get(f"http://{address}{path}")


async def test_two_workers_of_a_node_have_two_ports_and_a_file_each(tmp_path: Path) -> None:
    about = {"state_dir": tmp_path, "labels": {"stage": "run", "node": "n1"}}
    async with (
        listening(LOOPBACK, registry(), name="run-1", **about) as one,
        listening(LOOPBACK, registry(), name="run-2", **about) as two,
    ):
        assert one is not None
        assert one != two
        assert "seen_total 3.0" in (await get(one)).text
        assert (await get(one, "/else")).status_code == 404
        files = {path.stem: msgspec.json.decode(path.read_bytes()) for path in (tmp_path / "metrics").iterdir()}
        assert {name: entry[0]["targets"] for name, entry in files.items()} == {"run-1": [one], "run-2": [two]}
        assert files["run-1"][0]["labels"]["stage"] == "run"
    assert list((tmp_path / "metrics").iterdir()) == []


async def test_the_file_of_a_killed_process_of_this_node_goes_with_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    killed = await asyncio.create_subprocess_exec("true")
    await killed.wait()
    for node, name in (("n1", "here"), ("n2", "elsewhere")):
        entry = [{"targets": ["127.0.0.1:1"], "labels": {"node": node, "pid": str(killed.pid)}}]
        (tmp_path / "metrics" / f"{name}.json").write_bytes(msgspec.json.encode(entry))
    async with listening(LOOPBACK, registry(), state_dir=tmp_path, name="new", labels={"node": "n1"}):
        assert {path.stem for path in (tmp_path / "metrics").iterdir()} == {"elsewhere", "new"}


async def test_it_listens_on_a_unix_socket_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    async with (
        listening(f"unix:{path}", registry(), state_dir=tmp_path, name="one", labels={"node": "n1"}),
        httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client,
    ):
        assert "seen_total 3.0" in (await client.get("http://worker/metrics")).text
    assert not path.exists()
    async with listening(OFF, registry(), state_dir=tmp_path, name="two", labels={"node": "n1"}) as address:
        assert address is None


async def test_an_address_that_is_taken_or_wrong_is_said(tmp_path: Path) -> None:
    about = {"state_dir": tmp_path, "name": "one", "labels": {"node": "n1"}}
    async with listening(LOOPBACK, registry(), **about) as address:
        assert address is not None
        for where in (address, "nowhere"):
            with pytest.raises(ConfigurationError, match="give HOST:PORT, unix:PATH or off"):
                await listening(where, registry(), **about).__aenter__()


async def test_numbers_are_fresh_at_each_scrape(tmp_path: Path) -> None:
    made = CollectorRegistry()
    asked = Counter("asked", "Scrapes.", registry=made)

    async def fresh() -> None:
        asked.inc()

    labels = {"node": "n1"}
    async with listening(LOOPBACK, made, state_dir=tmp_path, name="k", labels=labels, fresh=fresh) as address:
        assert address is not None
        assert "asked_total 1.0" in (await get(address)).text
        assert "asked_total 2.0" in (await get(address)).text
