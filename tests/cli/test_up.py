"""`prorl-mq up` and `submit`, as a user runs them: real processes from end to end."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from prorl_mq.cli.local.programs import installed
from tests.cli.conftest import Up, below, command, names, prorl, watched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

Start = Callable[..., Up]
Backend = Callable[..., str]
Tasks = Callable[..., Path]


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_unlocked(directory: Path) -> None:
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_tasks_go_in_and_samples_come_out_and_sigterm_leaves_nothing(
    up: Start, start_backend: Backend, tasks: Tasks, tmp_path: Path
) -> None:
    """The whole way of a user, and its end: no process, no lock, no socket."""
    service = up("--sandbox", "none", "--backend", start_backend(), "--run", 2)
    for path in ("/", "/ui"):
        page = httpx.get(f"{service.url}{path}", follow_redirects=True, trust_env=False)
        assert (page.status_code, page.url.path) == (200, "/ui/")
    out = tmp_path / "out.jsonl"
    submit = ("submit", tasks(3), "--n", 2, "--out", out, "--url", service.url)
    done = prorl(*submit)
    assert done.returncode == 0, (done.stderr, service.said)
    assert f"{service.url}/ui/#token={service.token}\n" in service.said
    assert done.stdout == f"3 groups are in {out}\n"
    assert done.stderr.startswith(f"watch it: {service.url}/ui/#/batches/sums%3Asums-")
    assert "0 of 3 groups, 0 of 6 samples, 0 s so far\n" in done.stderr
    assert "3 of 3 groups, 6 of 6 samples, completed 6" in done.stderr
    found = lines(out)
    assert Counter(line["task_id"] for line in found) == {"sum-0": 2, "sum-1": 2, "sum-2": 2}
    assert all(line["outcome"] == "completed" and line["reward"] is not None for line in found)
    assert all(line["trajectory"]["segments"] for line in found)  # type: ignore[index]
    again = prorl(*submit[:-2])  # its directory names the address
    assert (again.returncode, lines(out)) == (0, found)
    assert "3 of 3 groups are in" in again.stderr
    other = prorl(*submit[:-4], "--out", tmp_path / "other.jsonl", "--url", service.url)
    assert other.returncode == 1
    assert "3 groups are not in" in other.stderr
    status = status_when(service, r"run +0 +0 +2 +0 +16")
    assert "ready" in status
    assert f"payloads: above 64 KiB in {service.state}/redis/payloads: 0 files" in status
    pids = below(service.process.pid)
    with watched(pids) as left:
        assert service.end() == 0
        assert left(60) == []
    assert not (service.state / "redis" / "redis.sock").exists()
    assert_unlocked(service.state)
    assert_unlocked(service.state / "redis")


def tokens_of_ann(directory: Path) -> Path:
    tokens = directory / "tokens.toml"
    tokens.write_text('[tenants.ann]\ntoken = "secret-of-ann"\n')
    tokens.chmod(0o600)
    return tokens


def test_beyond_loopback_a_tenants_token_opens_the_service_and_the_operator_gives_it_backends(
    up: Start, start_backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokens_of_ann(tmp_path)
    monkeypatch.setenv("PRORL_TOKEN", "secret-of-ann")
    service = up("--sandbox", "none", "--host", "0.0.0.0", "--tokens", tokens, "--backend", start_backend())
    monkeypatch.delenv("PRORL_TOKEN")
    assert f"elsewhere http://{socket.gethostname()}:" in service.wait_for("Ctrl-C drains")
    assert "/token/TOKEN, of a tenant\n" in service.said.partition("ProRL v1")[2]
    asked = ("run", "--json", "--url", service.url)
    refused = prorl(*asked)
    assert refused.returncode == 1
    assert "a bearer token is needed" in refused.stderr
    served = prorl(*asked, "--token", "secret-of-ann")
    assert (served.returncode, served.stdout) == (0, "[]\n")
    status = json.loads(prorl("status", "--json", "--state-dir", service.state).stdout)
    assert [pool for pool, _ in status["service"]["backends"]] == ["ann:policy"]
    ann = {"Authorization": "Bearer secret-of-ann"}
    own = httpx.post(f"{service.url}/v1/pools/policy/backends", json={"address": start_backend()}, headers=ann)
    assert (own.status_code, "no addresses are declared for tenant ann" in own.text) == (403, True)


def test_a_backend_of_nobody_is_refused_beside_tokens(tmp_path: Path) -> None:
    done = prorl("up", "--state-dir", tmp_path, "--tokens", tmp_path / "t.toml", "--backend", "http://b:1")
    assert done.returncode == 2
    assert "put the token of that tenant into PRORL_TOKEN" in done.stderr


def test_a_backend_of_an_unknown_tenant_is_refused_beside_tokens(
    up: Start, start_backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokens_of_ann(tmp_path)
    monkeypatch.setenv("PRORL_TOKEN", "secret-of-bob")
    service = up("--sandbox", "none", "--tokens", tokens, "--backend", start_backend())
    assert "PRORL_TOKEN is not in the file of --tokens" in service.wait_for("PRORL_TOKEN")


def test_kill_of_up_leaves_no_process(up: Start, start_backend: Backend, tasks: Tasks, tmp_path: Path) -> None:
    """Also sandboxes end, which live in sessions of their own, while an agent works in one."""
    kind = "bubblewrap"
    service = up("--sandbox", kind, "--backend", start_backend("--latency-ms", 600_000))
    argv = command("submit", tasks(1, tools=["execute_bash"]), "--out", tmp_path / "out", "--url", service.url)
    submit = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_running_job(service)
        pids = below(service.process.pid)
        running = names(pids)
        assert any("bwrap" in name or "setpriv" in name for name in running.values()), running
        assert any("workers.node.keeper" in name for name in running.values()), running
        with watched(pids) as left:
            service.process.kill()
            remaining = left(60)
            assert remaining == [], names(remaining)
    finally:
        submit.kill()
        submit.wait()
    assert not list((service.state / "sandboxes").iterdir())
    assert_unlocked(service.state / "redis")


def wait_for_running_job(service: Up) -> None:
    """Asks the service until the RUN worker holds a job: nothing tells a stranger when it does."""
    status_when(service, r"run +0 +1 ")


def status_when(service: Up, pattern: str) -> str:
    """What `status` prints once it matches `pattern`: a worker's busy slots come with its next heartbeat."""
    while not re.search(pattern, text := prorl("status", "--state-dir", service.state).stdout):
        assert service.process.poll() is None, text
    return text


def test_a_killed_submit_goes_on_where_it_was_and_doubles_nothing(
    up: Start, start_backend: Backend, tasks: Tasks, tmp_path: Path
) -> None:
    service = up("--sandbox", "none", "--slots", 4, "--backend", start_backend("--latency-ms", 150))
    out = tmp_path / "out.jsonl"
    words = ("submit", tasks(16), "--n", 2, "--out", out, "--url", service.url)
    killed = 0
    for _ in range(2):
        first = subprocess.Popen(command(*words), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while not out.exists() or out.read_bytes().count(b"\n") <= killed:
            assert first.poll() is None, "submit ended early"
        first.kill()
        first.wait()
        killed = len(lines(out))
        assert killed < 32
    with out.open("ab") as half:
        half.write(b'{"run_id": "sums", "job')  # as a kill in the middle of a write leaves it
    done = prorl(*words)
    assert done.returncode == 0, done.stderr
    found = Counter(line["job_id"] for line in lines(out))
    assert len(found) == 32
    assert set(found.values()) == {1}
    assert f"{killed // 2} of 16 groups" in done.stderr


def test_a_submit_whose_samples_fail_says_why_by_count_and_exits_with_1(
    up: Start, tasks: Tasks, tmp_path: Path
) -> None:
    service = up("--sandbox", "none")
    out = tmp_path / "out.jsonl"
    limits = ("--limits", "run_ms=12000", "max_attempts=1")
    done = prorl("submit", tasks(2), "--n", 2, *limits, "--out", out, "--url", service.url)
    assert (done.returncode, done.stdout) == (1, f"2 groups are in {out}\n")
    samples = lines(out)
    assert {(line["outcome"], line["reward"]) for line in samples} == {("infra_error", None)}
    assert f"{len(samples)} samples failed, backend: Stalled" in done.stderr
    assert f"2 of 2 groups, 4 of 4 samples, {len(samples) - 4} replaced, infra_error {len(samples)}" in done.stderr
    assert "2 of them failed: see the errors of their samples there" in done.stderr
    log = (service.state / "logs" / "run-1.log").read_text()
    assert log.count("cause=backend failed: Stalled") == len(samples)


def test_a_worker_that_dies_is_started_again(up: Start, start_backend: Backend, tasks: Tasks, tmp_path: Path) -> None:
    service = up("--sandbox", "none", "--backend", start_backend())
    url = service.url
    victims = [pid for pid, name in names(below(service.process.pid)).items() if "--stage run" in name]
    os.kill(victims[0], signal.SIGKILL)
    said = service.wait_for("it starts again")
    assert "run-1 was killed by SIGKILL" in said
    done = prorl("submit", tasks(1), "--out", tmp_path / "out", "--url", url)
    assert done.returncode == 0, done.stderr


def test_redis_that_dies_is_started_again_with_what_it_had(up: Start) -> None:
    service = up("--sandbox", "none", "--init", 0, "--run", 0, "--eval", 1)
    assert service.url
    compatible = service.said.partition("ProRL v1 ")[2].split()[0]
    assert httpx.post(f"{compatible}/start", timeout=120).json() == {"status": "Server started successfully"}
    [redis] = [pid for pid, name in names(below(service.process.pid)).items() if "-server" in name]
    os.kill(redis, signal.SIGKILL)
    service.wait_for("it is restarted with its stored data")
    assert service.end() == 0


def test_two_services_do_not_share_a_directory(up: Start, state: Path) -> None:
    first = up("--sandbox", "none", "--init", 0, "--run", 0, "--eval", 0)
    assert first.url
    second = prorl("up", "--state-dir", state, "--port", 0)
    assert second.returncode == 2
    assert f"another server uses {state}" in second.stderr


def test_a_worker_that_cannot_start_ends_the_start_with_its_words(up: Start) -> None:
    service = up("--sandbox", "bubblewarp")
    assert service.process.wait(240) == 1
    service.end()
    assert "did you mean 'bubblewrap'" in service.said


def test_a_job_can_be_looked_at_and_cancelled(up: Start, start_backend: Backend, tasks: Tasks, tmp_path: Path) -> None:
    service = up("--sandbox", "none", "--backend", start_backend("--latency-ms", 600_000))
    out = tmp_path / "out.jsonl"
    words = ("submit", tasks(1), "--out", out, "--run", "r", "--batch", "b", "--url", service.url)
    submit = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for_running_job(service)
        job = prorl("job", "r:b-0:0", "--url", service.url).stdout
        assert re.match(r"r:b-0:0: leased in run; run-\S+ has been working on it", job), job
        line = prorl("job", "r:b-0:0", "--timeline", "--url", service.url).stdout
        assert re.search(r"  claim +run +leased ", line), line
        assert "no turns: it has logged no turn" in line
        unknown = prorl("job", "r:b-0:1", "--url", service.url)
        assert (unknown.returncode, unknown.stdout) == (1, "")
        cancelled = prorl("cancel", "batch", "r:b", "--url", service.url)
        assert cancelled.stdout == "batch r:b: cancelling; workers are stopping 1 jobs\n"
        said, _ = submit.communicate(timeout=120)
        assert submit.returncode == 0, said
    finally:
        submit.kill()
        submit.wait()
    [line] = lines(out)
    assert (line["outcome"], line["reward"], line["verdict"]) == ("cancelled", None, "cancelled")


def test_a_second_interrupt_ends_at_once(up: Start, start_backend: Backend, tasks: Tasks, tmp_path: Path) -> None:
    """The first lets the job finish, which would take ten minutes here."""
    service = up("--sandbox", "none", "--backend", start_backend("--latency-ms", 600_000), "--grace", 600)
    argv = command("submit", tasks(1), "--out", tmp_path / "out", "--url", service.url)
    submit = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_running_job(service)
        pids = below(service.process.pid)
        with watched(pids) as left:
            service.process.send_signal(signal.SIGINT)
            service.wait_for("draining")
            assert service.end(signal.SIGINT) == 0
            assert left(60) == []
    finally:
        submit.kill()
        submit.wait()


VLLM = """#!/bin/sh
echo "Loading weights: 1 of 2"
read -r _ <{gate}
exec {python} -m prorl_mq.testing.fake_backend --port "$6"
"""


def test_who_waits_for_a_local_backend_reads_what_it_does(
    up: Start, tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, gate = tmp_path / "venv" / "bin" / "vllm", tmp_path / "gate"
    program.parent.mkdir(parents=True)
    program.write_text(VLLM.format(gate=gate, python=sys.executable))
    program.chmod(0o755)
    os.mkfifo(gate)
    monkeypatch.setenv("VLLM_VENV", str(program.parents[1]))
    service = up("--sandbox", "none", "--local-backend", tokenizer_dir)
    service.wait_for("last line: Loading weights: 1 of 2\n")
    gate.write_text("open\n")
    assert re.search(r"backends +http://127", service.wait_for("Ctrl-C drains"))


def test_what_make_has_installed_is_found_unless_the_environment_says_other(tmp_path: Path) -> None:
    assert installed(tmp_path, {}) == {}
    images = tmp_path / "images" / "swe" / "images.json"
    images.parent.mkdir(parents=True)
    images.touch()
    (tmp_path / "agents").mkdir()
    found = {"PRORL_SWE_IMAGES": str(images), "PRORL_AGENTS": str(tmp_path / "agents")}
    assert installed(tmp_path, {}) == found
    assert installed(tmp_path, {"PRORL_SWE_IMAGES": "mine.json"}) == {"PRORL_AGENTS": found["PRORL_AGENTS"]}
