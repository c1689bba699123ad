"""The guarantees that status and doctor read from servers of different settings."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from prorl_mq.cli import doctor, overview
from prorl_mq.cli.arguments import parse
from prorl_mq.process import mounts, redis_server
from prorl_mq.schema.messages import Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import ask, connect
from prorl_mq.store.store import Store, renewal

pytestmark = pytest.mark.anyio


async def said(
    directory: Path, options: Sequence[str], capsys: pytest.CaptureFixture[str], *, other: str = "", master: str = ""
) -> dict[str, str]:
    """What status prints of a server with these options, by subject; doctor finds the same. `other`: the limits of a
    second worker's sandboxes on the same node; `master`: the server is a replica of that from now on.
    """
    async with redis_server.running(directory, options=options, namespace="t") as settings:
        redis = connect(settings)
        store = Store(redis, Keys("t"), name="test")
        await store.open_epoch()
        about: dict[str, str | int] = {
            "stage": Stage.RUN, "node": "n1", "slots": 1, "busy": 0, "pid": 1, "started_ms": 1, "sandbox": "bubblewrap",
            "limits": "watchdog",
        }  # fmt: skip
        beat = renewal(store.keys, "w", about, [], lease_ms=60_000)
        await store.call("renew", beat.keys, beat.arguments)
        if other:
            beat = renewal(store.keys, "w2", {**about, "limits": other}, [], lease_ms=60_000)
            await store.call("renew", beat.keys, beat.arguments)
        if master:
            await ask(redis, "REPLICAOF", *master.split(":"))
        words = ["--redis", settings.url, "--namespace", "t", "--state-dir", str(directory / "state")]
        assert await overview.run(parse(["status", *words])) == 0
        shown = capsys.readouterr().out.rpartition("\n\n")[2].splitlines()
        assert len(shown) == 7
        await doctor.run(parse(["doctor", "--sandbox", "none", *words]))
        found = " ".join(capsys.readouterr().out.split())
        assert all(" ".join(line.split()) in found for line in shown)
        assert (f"a replica of {master}: nothing is accepted or acknowledged here" in found) is bool(master)
        await redis.aclose()
    return {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in shown}


async def test_a_server_that_syncs_every_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = await said(tmp_path, ("--appendfsync", "always", "--maxmemory", "8gb"), capsys)
    assert found["durability"].startswith("fsync always: a crash of any process or of the host loses nothing")
    refused = "above 70% new work is refused; a run holds 2048 MiB of results at most"
    assert found["memory"].endswith(f"of 8192 MiB, {refused}")
    assert found["replicas"].startswith("none: work waits while Redis is down")
    assert found["storage"].startswith(f"data in {tmp_path} (")
    assert found["sandboxes"].startswith("soft limits on n1")
    assert found["clock"].startswith("epoch 1, open for 0 min; no jump")
    assert found["workers"].startswith("0 init, 1 run, 0 eval (work waits: no init, eval)")


async def test_a_server_that_syncs_every_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = await said(tmp_path, (), capsys)
    assert found["durability"].startswith("fsync everysec: a crash of the host can lose the last second or two")
    assert "no maxmemory: the kernel may kill Redis" in found["memory"]


async def test_a_server_without_an_append_only_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = await said(tmp_path, ("--appendonly", "no"), capsys)
    assert found["durability"].startswith("appendonly is off: a restart of Redis loses")
    assert found["replicas"].endswith("(no WAITAOF)")


async def test_a_server_that_stops_its_fsyncs_for_rewrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = await said(tmp_path, ("--appendfsync", "always", "--no-appendfsync-on-rewrite", "yes"), capsys)
    assert found["durability"].startswith("fsync always, but a crash of the host can lose about 30 s while the append-")


async def test_a_server_whose_disk_is_memory(capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="pq", dir="/dev/shm") as name:
        found = await said(Path(name), ("--appendfsync", "always"), capsys)
    assert found["durability"].startswith("data in memory (tmpfs): a crash of the host loses all of it")
    assert found["storage"].endswith("(tmpfs, in memory): it goes with this host")


async def test_a_server_that_is_a_replica(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = await said(tmp_path, (), capsys, master="127.0.0.1:1")
    assert found["replicas"].startswith("this server is a replica of 127.0.0.1:1: it takes no work")


async def test_the_weakest_limits_are_those_of_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = await said(tmp_path, (), capsys, other="hard")
    assert found["sandboxes"].startswith("soft limits on n1")


def test_a_directory_of_the_same_name_on_another_host_is_not_taken_for_the_servers(tmp_path: Path) -> None:
    """The control is the directory that this process works in."""
    assert mounts.here(str(tmp_path), os.getpid()) == ""
    assert mounts.here(str(Path.cwd()), os.getpid()) != ""
