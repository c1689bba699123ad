"""The guarantees that status and doctor read from servers of different settings."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from prorl_mq.cli import doctor, overview
from prorl_mq.cli.arguments import parse
from prorl_mq.process import redis_server
from prorl_mq.schema.messages import Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import connect
from prorl_mq.store.store import Store, renewal

pytestmark = pytest.mark.anyio


async def said(directory: Path, options: Sequence[str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What status prints of a server with these options, by subject; doctor finds the same."""
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
        words = ["--redis", settings.url, "--namespace", "t", "--state-dir", str(directory / "state")]
        assert await overview.run(parse(["status", *words])) == 0
        shown = capsys.readouterr().out.rpartition("\n\n")[2].splitlines()
        assert len(shown) == 7
        await doctor.run(parse(["doctor", "--sandbox", "none", *words]))
        found = " ".join(capsys.readouterr().out.split())
        assert all(" ".join(line.split()) in found for line in shown)
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
