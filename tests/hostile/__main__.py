"""Hostile agents and failing nodes for long, through real sandboxes and the keeper.

    python -m tests.hostile [--acts 100000] [--kinds bubblewrap,apptainer] [--seed 1] [--at-once 8] [--seconds 600]

Exit code 1 if an invariant was broken; each broken one names its seed, which `--only SEED` repeats.
"""

import argparse
import asyncio
import itertools
import logging
import sys
import tempfile
import time
from pathlib import Path

from sandbox.protocol import SandboxProvider
from tests.hostile.episodes import Found, episode, kept
from tests.sandbox.conftest import TOOLS_DIR
from workers.rehearsal.stages import rehearsing

EPISODE_S = 600.0
KEEPER_S = 10.0  # then it ends, and another one takes its place


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.hostile", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--acts", type=int, default=100_000, help="of all kinds of sandboxes together")
    parser.add_argument("--kinds", default="bubblewrap,apptainer")
    parser.add_argument("--seed", type=int, default=1, help="of the first episode")
    parser.add_argument("--only", type=int, default=None, help="one episode, of this seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each kind, at most")
    parser.add_argument("--at-once", type=int, default=8, help="episodes")
    return parser


async def main(given: argparse.Namespace) -> int:
    found, began = Found(), time.monotonic()
    kinds = given.kinds.split(",")
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="hostile-") as name:
            state = Path(name)
            await asyncio.to_thread(state.chmod, 0o755)
            keeping = kept(kind, state, TOOLS_DIR, warm=given.at_once, lives_s=KEEPER_S)
            async with keeping as provider, rehearsing(provider) as rehearsal:
                found.add(await _many(given, given.acts // len(kinds), provider, rehearsal.model))
    print(_told(found, time.monotonic() - began))
    return int(bool(found.violations))


async def _many(given: argparse.Namespace, wanted: int, provider: SandboxProvider, model: Path) -> Found:
    found, end = Found(), time.monotonic() + given.seconds
    seeds = iter([given.only]) if given.only is not None else itertools.count(given.seed)

    async def work() -> None:
        for seed in seeds:
            async with asyncio.timeout(EPISODE_S):
                one = await episode(seed, provider, model)
            found.add(one)
            for each in one.violations:
                print(each, flush=True)
            if found.acts.total() >= wanted or time.monotonic() > end:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(given.at_once):
            group.create_task(work())
    return found


def _told(found: Found, seconds: float) -> str:
    acts = found.acts.total()
    lines = [f"{acts} acts in {seconds:.0f} s, {acts / seconds:.0f} a second; {len(found.violations)} violations"]
    lines += [f"{count:8} {what}" for table in (found.acts, found.ends) for what, count in table.most_common()]
    lines += [f"{count:8} in doubt at {what}" for what, count in found.doubts.most_common(20)]
    return "\n".join(lines)


if __name__ == "__main__":
    logging.getLogger("sandbox").setLevel(logging.ERROR)
    sys.exit(asyncio.run(main(arguments().parse_args())))
