"""The cost of the seal: sealed and bare sandboxes of one kind in turn, in one run, with the ratios.

python -m bench.sandbox.sealed [--tools .state] [--rounds 15]
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandbox.isolators.apptainer import ApptainerProvider
from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec

CALLS = 100
CHEAPEST = "getppid, ns"
NANOSECONDS = "import os, timeit; print(min(timeit.repeat(os.getppid, number=5000, repeat=60)) / 5000 * 1e9)"
Act = Callable[[Sandbox], Awaitable[object]]
ACTS: dict[str, tuple[Act, int]] = {
    "bash true": (lambda sandbox: sandbox.bash("true"), CALLS),
    "run true": (lambda sandbox: sandbox.run(["true"]), CALLS // 4),
    "cell 1+1": (lambda sandbox: sandbox.ipython("1+1"), CALLS),
    "run python3 -c pass": (lambda sandbox: sandbox.run(["python3", "-S", "-c", "pass"]), CALLS // 10),
}


def provider(kind: str, state: Path, tools: Path, *, sealed: bool) -> SandboxProvider:
    if kind == "apptainer":
        return ApptainerProvider("bench", state, None, tools, sealed=sealed)
    return BubblewrapProvider("bench", state, None, sealed=sealed)


async def timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000


async def measure(kind: str, tools: Path, rounds: int) -> None:
    seen: defaultdict[tuple[str, bool], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # noqa: ASYNC240 - nothing else runs
        makers = {sealed: provider(kind, Path(name), tools, sealed=sealed) for sealed in (False, True)}
        for each in range(rounds):
            sandboxes = {}
            for sealed in (True, False) if each % 2 else (False, True):
                began = time.perf_counter()
                sandboxes[sealed] = await makers[sealed].create(SandboxSpec(owner="bench"))
                seen["start", sealed].append((time.perf_counter() - began) * 1000)
            for what, (act, times) in ACTS.items():
                for at in range(-1, times):
                    for sealed in (True, False) if at % 2 else (False, True):
                        ms = await timed(act(sandboxes[sealed]))
                        seen[what, sealed] += [ms] if at >= 0 else []
            for sealed, sandbox in sandboxes.items():
                seen[CHEAPEST, sealed].append(float((await sandbox.run(["python3", "-S", "-c", NANOSECONDS])).stdout))
                await sandbox.close()
        for maker in makers.values():
            await maker.aclose()
    for what in ("start", *ACTS, CHEAPEST):
        figures = [(statistics.quantiles(seen[what, sealed], n=10)) for sealed in (False, True)]
        tenth, middle = ((bare[at], sealed[at], sealed[at] / bare[at]) for bare, sealed in [figures] for at in (0, 4))
        print(
            f"{kind:<11} {what:<20}" + "".join(f" {a:9.3f} {b:9.3f}  {ratio:5.2f}" for a, b, ratio in (tenth, middle))
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.sandbox.sealed")
    parser.add_argument("--tools", type=Path, default=Path(".state"))
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    print("ms                               tenth: bare    sealed  ratio   median: bare  sealed  ratio")
    for kind in ("bubblewrap", "apptainer"):
        asyncio.run(measure(kind, given.tools.absolute(), given.rounds))


if __name__ == "__main__":
    main()
