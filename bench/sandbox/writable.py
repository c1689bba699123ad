"""Start and memory of sandboxes with a writable directory of their image: an overlay against copies, in one run.

python -m bench.sandbox.writable [--tools .state] [--rounds 5] [--mb 500 2000]

The image is the base image's, with a tree of files in it. Each round makes one sandbox in each way; the time is that of
`create` and of the first command, which appends to a file of the tree. Memory is what file systems in memory take more
while the sandbox lives.
"""

import argparse
import asyncio
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.isolators.apptainer import ApptainerProvider
from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.isolators.writable.ways import Way
from sandbox.protocol import SandboxLimits, SandboxProvider, SandboxSpec

PLACE = "/testbed"
FILE_BYTES = 50_000
FILES_A_DIRECTORY = 100
NONE = "no such directory"
WAYS = (NONE, Way.OVERLAY, Way.OVERLAY_ON_DISK, Way.DISK, Way.MEMORY)
LIMITS = SandboxLimits(disk_bytes=2 << 30)


def provider(kind: str, state: Path, tools: Path, way: str) -> SandboxProvider:
    ways = tuple(Way) if way == NONE else (Way(way),)
    if kind == "apptainer":
        return ApptainerProvider("bench", state, None, tools, ways=ways)
    return BubblewrapProvider("bench", state, None, ways=ways)


def make_image(base: Path, image: Path, mb: int) -> None:
    """Files of 50 kB that do not compress, as root's or the user's own."""
    subprocess.run(["cp", "-a", "--no-preserve=ownership", str(base), str(image)], check=True)
    content = random.Random(0).randbytes(FILE_BYTES)
    for number in range(mb * 1_000_000 // FILE_BYTES):
        path = image / PLACE[1:] / f"d{number // FILES_A_DIRECTORY}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    os.sync()


def memory_mib() -> float:
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(rows["Shmem"].split()[0]) / 1024


async def one(maker: SandboxProvider, image: Path, way: str) -> tuple[float, float]:
    """Seconds and MiB. Raises `SandboxError`."""
    before = memory_mib()
    began = time.perf_counter()
    writable = [] if way == NONE else [PLACE]
    box = await maker.create(SandboxSpec(owner="bench", image=str(image), writable=writable, limits=LIMITS))
    try:
        command = "true" if way == NONE else f"echo x >>{PLACE}/d0/f0"
        done = await box.run(["sh", "-c", command])
        seconds = time.perf_counter() - began
        if done.exit_code != 0:
            raise SandboxError(done.stderr.decode())
        return seconds, memory_mib() - before
    finally:
        await box.close()


async def measure(kind: str, image: Path, state: Path, tools: Path, mb: int, rounds: int) -> None:
    makers = {way: provider(kind, state, tools, way) for way in WAYS}
    seen: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    failed: dict[str, str] = {}
    for each in range(rounds + 1):  # the first one probes, and warms the cache
        for way, maker in makers.items():
            if way in failed or (each > 1 + rounds // 2 and way in {Way.DISK, Way.MEMORY}):
                continue
            try:
                found = await one(maker, image, way)
            except SandboxError as error:
                failed[way] = str(error).rpartition(": ")[2][:80]
            else:
                seen[way] += [found] if each else []
    for way, maker in makers.items():
        await maker.aclose()
        if way in failed:
            print(f"{kind:<11} {mb:>5} MB  {way:<18} fails: {failed[way]}")
            continue
        seconds, mib = zip(*seen[way], strict=True)
        print(
            f"{kind:<11} {mb:>5} MB  {way:<18} {statistics.median(seconds):7.3f} s ({min(seconds):.3f} to "
            f"{max(seconds):.3f}, n = {len(seconds)})  {statistics.median(mib):7.0f} MiB",
            flush=True,
        )


async def main(options: argparse.Namespace) -> None:
    load = os.getloadavg()[0]
    base = options.tools.resolve() / "images" / "base"
    for mb in options.mb:
        with tempfile.TemporaryDirectory(prefix="prorl-bench-", dir="/var/tmp") as name:
            place = Path(name)
            place.chmod(0o755)  # noqa: ASYNC240 - nothing else runs
            make_image(base, place / "image", mb)
            for kind in options.kinds:
                await measure(kind, place / "image", place / "state", options.tools, mb, options.rounds)
            shutil.rmtree(place / "image")
    print(f"load {load:.1f} to {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, default=Path(".state"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mb", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--kinds", nargs="+", default=["bubblewrap", "apptainer"])
    asyncio.run(main(parser.parse_args()))
