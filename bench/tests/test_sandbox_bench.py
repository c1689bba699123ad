"""Contenders, rounds, leaks and goals of the sandbox benchmark."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from bench.sandbox import bash, calls, cells, starts, transport
from bench.sandbox.__main__ import SUITES
from bench.sandbox.churn import Churn, churn, traces
from bench.sandbox.contender import Contender, ContenderMissing, Measure, Samples, Setting
from bench.sandbox.goals import BARE, BASH, BUBBLEWRAP_COLD, CELLS, COLD, WARM, judge, p50_ms, p99_ms, times
from bench.sandbox.peer import PeerFailed, peer
from bench.sandbox.rounds import Found, case_of, run_rounds
from sandbox.lifetime import label

pytestmark = pytest.mark.anyio
TOOLS = Path(__file__).parents[2] / ".state"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    """`venvs` has one environment, `here`: this interpreter."""
    python = tmp_path / "venvs" / "here" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return Setting(scratch=scratch, tools=TOOLS, venvs=tmp_path / "venvs")


@asynccontextmanager
async def fixed(_: Setting, *, seconds: float, calls: list[int]) -> AsyncIterator[Measure]:
    async def measure(count: int) -> Samples:
        calls.append(count)
        return {"it": [seconds] * count}

    yield measure


@asynccontextmanager
async def broken(_: Setting) -> AsyncIterator[Measure]:
    async def measure(count: int) -> Samples:
        if count > 1:
            raise RuntimeError("it broke")
        return {"it": [1.0]}

    yield measure


def test_no_two_contenders_have_one_name_and_each_is_compared_with_one_there_is() -> None:
    contenders = [each for suite in SUITES.values() for each in suite.contenders()]
    names = [each.name for each in contenders]
    assert len(names) == len(set(names))
    assert {each.ours for each in contenders if each.ours} < set(names)
    assert {BASH, CELLS, COLD, WARM, BARE} < set(names)


async def test_a_contender_that_breaks_is_named_and_does_not_stop_the_others(setting: Setting) -> None:
    calls: list[int] = []
    contenders = [
        Contender(name="ours", samples=40, make=partial(fixed, seconds=0.002, calls=calls)),
        Contender(name="theirs", samples=10, make=partial(fixed, seconds=0.006, calls=[]), ours="ours"),
        Contender(name="broken", samples=10, make=broken, ours="ours"),
    ]
    found = await run_rounds(contenders, setting, rounds=2, share=0.5)
    assert calls == [4, 20, 20]  # the first are not counted
    assert found.errors == {"broken": "RuntimeError in round 1: it broke"}
    assert p50_ms(found, "it | ours") == pytest.approx(2.0)
    assert p99_ms(found, "it | ours") == pytest.approx(2.0)
    assert p99_ms(found, "it | theirs") is None  # ten samples have no p99
    assert times(found, "it | theirs", "it | ours") == pytest.approx(3.0)
    assert p50_ms(found, "it | broken") is None


def found_of(**ms: float) -> Found:
    quantities = {
        "bash": (bash.QUANTITY, "apptainer: our bash"), "cell": (cells.QUANTITY, "apptainer: our cells"),
        "cold": (starts.READY, "apptainer: ours, cold"), "warm": (starts.READY, "apptainer: ours, warm"),
        "bare": (starts.READY, BARE), "bubblewrap": (starts.READY, BUBBLEWRAP_COLD),
        "stop": (starts.STOP, "apptainer: ours, cold"),
    }  # fmt: skip
    cases = {case_of(*quantities[name]): value for name, value in ms.items()}
    rows = [{"case": case, "round": 0, "p50_ms": value} for case, value in cases.items()]
    return Found(rows=rows, seconds={case: [value / 1e3] * 30 for case, value in cases.items()})


def churned(left_files: int) -> Churn:
    return Churn(
        kind="apptainer", sandboxes=100, concurrency=8, per_s=9.0, ready_p50_ms=1.0, stop_p50_ms=1.0, stop_p99_ms=2.0,
        left_processes=0, left_mounts=0, left_files=left_files, left_descriptors=0,
    )  # fmt: skip


def test_every_aim_can_be_met_and_missed() -> None:
    well = judge(found_of(bash=0.2, cell=0.4, cold=110, warm=9, bare=100, bubblewrap=25, stop=19), [churned(0)])
    badly = judge(found_of(bash=2, cell=2, cold=120, warm=11, bare=100, bubblewrap=26, stop=21), [churned(1)])
    assert [each.met for each in well.values()] == [True] * 8
    assert [each.met for each in badly.values()] == [False] * 8
    assert badly["left behind by 100 starts and stops, apptainer"].note == "1 files"


async def test_a_peer_is_asked_for_samples_and_what_else_it_prints_is_skipped(setting: Setting) -> None:
    python = setting.venvs / "here" / "bin" / "python"
    program = "from bench.sandbox.peer_loop import serve; print(1); serve(lambda count: print(2) or [0.5] * count)"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{program}'\n")
    async with peer(setting, "here", "peer_pty", [], "it") as measure:
        assert [await measure(2), await measure(1)] == [{"it": [0.5, 0.5]}, {"it": [0.5]}]


async def test_a_peer_that_dies_is_an_error_with_its_last_words(setting: Setting) -> None:
    with pytest.raises(PeerFailed, match=r"(?s)peer_swerex ended: .*No module named 'swerex'"):
        async with peer(setting, "here", "peer_swerex", ["local"], "it"):
            pass


async def test_a_missing_environment_is_named(setting: Setting) -> None:
    with pytest.raises(ContenderMissing, match=r"none/bin/python is missing: bench/venvs.sh"):
        async with peer(setting, "none", "peer_pty", [], "it"):
            pass


async def test_both_transports_answer_all_payloads(setting: Setting) -> None:
    found = await run_rounds(transport.contenders(), setting, rounds=1, share=0.02)
    assert not found.errors
    assert len(found.rows) == 2 * len(transport.PAYLOADS)
    assert {row["samples"] for row in found.rows} == {2}


async def test_system_calls_are_counted_for_each_process_of_a_sandbox(setting: Setting) -> None:
    try:
        found = await calls.system_calls(setting, "bubblewrap")
    except ContenderMissing as missing:
        pytest.skip(str(missing))
    assert set(found) >= {f"bash true, {name}" for name in ("bash", "server", "client")}
    assert 5 < found["bash true, bash"] < 60


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("<not counted>,,raw_syscalls:sys_enter,0,100.00,,\n", 0),
        ("6200,,raw_syscalls:sys_enter,1,100.00,,\n", 6200),
        ("    1 read\n 41 write\n 42 total\n", 42),
    ],
)
def test_what_counters_print_is_understood(printed: str, said: int) -> None:
    assert calls.total(printed) == said


def test_a_counter_that_may_not_count_is_named() -> None:
    with pytest.raises(ContenderMissing, match="not permitted"):
        calls.total("Error: operation not permitted\n")


async def test_starts_and_stops_leave_nothing_and_what_they_would_leave_is_seen(setting: Setting) -> None:
    done = await churn("bubblewrap", setting, sandboxes=6, concurrency=3)
    assert (done.left, done.sandboxes) == (0, 6)
    state_dir = setting.scratch / "churn-bubblewrap"
    assert leaves(state_dir)


def leaves(state_dir: Path) -> bool:
    """Else the test could not fail."""
    before = traces(state_dir)
    with subprocess.Popen(["sleep", "600"]) as left, Path("/dev/null").open():
        (label.root(state_dir) / "left").mkdir()
        after = traces(state_dir)
        left.kill()
    assert [pid for pid, _ in after.processes - before.processes] == [left.pid]
    assert after.files - before.files == {str(label.root(state_dir) / "left")}
    return len(after.descriptors - before.descriptors) > 0
