"""`python -m workers.images pull` on two nodes, killed at random moments: each byte is fetched about once."""

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_mq.store.server.connection import RedisSettings
from tests.support.queue import Queue
from tests.support.registry import PLAIN, LoopbackRegistry, archive, file
from tests.worker.conftest import queue

__all__ = ["queue"]
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("PRORL_IMAGE_KILLS", "2"))
IN_FLIGHT = 2 << 20  # bytes that sockets hold when their reader is killed


async def test_pulls_that_are_killed_at_any_moment_are_continued_at_their_byte(
    settings: RedisSettings, queue: Queue, registry: LoopbackRegistry, place: Path
) -> None:
    size = 4 << 20
    layers = [archive([file(f"bulk{number}", os.urandom(size))]) for number in range(2)]
    name = registry.push("big", layers, media=PLAIN)
    registry.bytes_per_s = 1_000_000
    (place / "images.toml").write_text(f'storage = "{place}/blobs"\n')
    environment = {**os.environ, "PRORL_IMAGES": str(place / "images.toml"), "PYTHONPATH": str(ROOT)}

    def start(node: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "workers.images", "pull", name, "--node", node, "--state-dir", str(place / node)]
        words += ["--redis", settings.url, "--namespace", settings.namespace]
        return subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    nodes = {node: start(node) for node in ("n1", "n2")}
    chance = random.Random(7)
    for _ in range(KILLS):
        sent = sum(registry.sent.values())
        until = sent + chance.randrange(1, size // 2)
        while sum(registry.sent.values()) < until and any(each.poll() is None for each in nodes.values()):
            await asyncio.sleep(0.01)
        node = chance.choice(sorted(nodes))
        nodes[node].kill()
        await asyncio.to_thread(nodes[node].wait)
        nodes[node] = start(node)
    codes = [await asyncio.to_thread(each.wait) for each in nodes.values()]
    assert codes == [0, 0]
    for node in nodes:
        [image] = [path for path in (place / node / "image-cache").glob("*/image") if "layer-" not in str(path)]
        assert {path.name: path.stat().st_size for path in image.glob("bulk*")} == {"bulk0": size, "bulk1": size}
    total = sum(len(data) for data in registry.blobs.values())
    assert sum(registry.sent.values()) <= total + KILLS * 2 * IN_FLIGHT
    assert all(registry.asked[digest] <= 1 + KILLS for digest in registry.blobs)
