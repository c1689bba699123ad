"""Copies of a sandbox with 200 MB of changes by layers, and of one with 30 MB by a checkpoint.

A rollout keeps no checkpoint above 32 MiB.
Milliseconds from the call to the end of a first command in the copy. Both ways take a fresh sandbox that is marked
(warm), and the layers one that is made for it too (cold). The source changes a file before each copy, and runs a
command behind it.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from bench.measure import load
from sandbox.isolators.kinds import make_provider
from sandbox.isolators.layers.copying import Copies
from sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec

TOTAL_BYTES, SAVED_BYTES = 200_000_000, 30_000_000
MOST_LAYERS = 14  # then the source is made again
TOOLS = Path(__file__).parents[2] / ".state"


class Rounds:
    """One kind of sandbox, with a source."""

    def __init__(self, provider: SandboxProvider, copies: Copies, files: int) -> None:
        self._provider, self._copies, self._files = provider, copies, files
        self._sealed = MOST_LAYERS
        self._source: Sandbox | None = None
        self._saved: Sandbox | None = None
        self.found: dict[str, list[float]] = {}

    async def round(self) -> None:
        for way in ("layers, warm", "layers, cold", "checkpoint, warm"):
            source = await (self._fresh_source() if way.startswith("layers") else self._to_be_saved())
            await source.bash(f"echo {way} >>/workspace/told; mkdir -p '/workspace/{way}'")
            began = time.perf_counter()
            target = await self._marked()
            if way.endswith("warm"):
                await asyncio.sleep(0.5)  # the sandbox before has gone by then
                began = time.perf_counter()
            if way.startswith("layers"):
                await self._copies.copy(source.handle, target, turn=-1)
                self._sealed += 1
            else:
                saved = await source.save(max_bytes=SAVED_BYTES + (1 << 20))
                assert saved.data is not None
                await target.restore(saved.data)
            done = await target.bash("true")
            self.found.setdefault(way, []).append((time.perf_counter() - began) * 1e3)
            assert done.exit_code == 0
            began = time.perf_counter()
            assert (await source.bash("true")).exit_code == 0
            self.found.setdefault(f"{way}: the source's next command", []).append((time.perf_counter() - began) * 1e3)
            assert (await target.bash("tail -n 1 /workspace/told")).output == f"{way}\n"
            await target.close()

    async def _fresh_source(self) -> Sandbox:
        if self._source is None or self._sealed >= MOST_LAYERS:
            if self._source is not None:
                await self._source.close()
            self._source, self._sealed = await self._filled(TOTAL_BYTES), 0
        return self._source

    async def _to_be_saved(self) -> Sandbox:
        if self._saved is None:
            self._saved = await self._filled(SAVED_BYTES)
        return self._saved

    async def _filled(self, size: int) -> Sandbox:
        box = await self._marked()
        fill = f"for n in $(seq {self._files}); do head -c {size // self._files} /dev/urandom >d/$n; done"
        done = await box.bash(f"cd /workspace; mkdir d; {fill}", timeout_s=120)
        assert done.exit_code == 0, done
        return box

    async def _marked(self) -> Sandbox:
        box = await self._provider.create(SandboxSpec(owner="bench"))
        await box.mark()
        return box

    async def close(self) -> None:
        for box in (self._source, self._saved):
            if box is not None:
                await box.close()
        await self._copies.aclose()


async def copies(kinds: list[str], rounds: int, files: int) -> None:
    """Prints a row for each kind and way."""
    print(f"copies of a sandbox with 200 MB in {files} files, {rounds} of each, ms; load {load()}:")
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="pq") as directory:
            Path(directory).chmod(0o755)  # noqa: ASYNC240 - nothing else runs
            provider = make_provider(kind, node="bench", state_dir=Path(directory), tools_dir=TOOLS, python_dir=None)
            made = Rounds(provider, Copies(), files)
            try:
                await made.round()  # what runs for the first time
                made.found.clear()
                for _ in range(rounds):
                    await made.round()
            finally:
                await made.close()
                await provider.aclose()
        for way, each in made.found.items():
            spread = f"median {statistics.median(each):.1f}, {min(each):.1f} to {max(each):.1f}"
            print(f"| {kind} | {way} | {spread} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.turns.copies", description=__doc__)
    parser.add_argument("--kinds", default="bubblewrap,apptainer")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--files", type=int, default=20)
    given = parser.parse_args()
    asyncio.run(copies(given.kinds.split(","), given.rounds, given.files))


if __name__ == "__main__":
    main()
