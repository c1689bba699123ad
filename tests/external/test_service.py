"""A harness under a running service: its limit and a cancel end it, and nothing of it is left."""

import json
import secrets
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.conftest import Up, command, prorl, start_backend, state, tokenizer_dir, up
from tests.external.stubborn import description, left
from tests.swe.conftest import QUICK, ROWS, images
from workers.external.harness import AGENTS

__all__ = ["images", "start_backend", "state", "tokenizer_dir", "up"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the processes of a harness called stubborn, which is installed for the service."""
    word = secrets.token_hex(8)
    place = tmp_path / "agents" / "stubborn"
    place.mkdir(parents=True)
    (place / "harness.json").write_text(json.dumps(description(word)))
    monkeypatch.setenv(AGENTS, str(place.parent))
    return word


@pytest.fixture
def submission(tmp_path: Path) -> Callable[..., list[object]]:
    """The words that submit one instance under a name, for the harness."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"task_id": QUICK, "data_source": "swebench", "payload": ROWS[QUICK]}) + "\n")

    def words(service: Up, name: str, *options: object) -> list[object]:
        about = [
            "--agent",
            "stubborn",
            "--batch",
            name,
            "--out",
            tmp_path / f"{name}.jsonl",
            "--url",
            service.url,
            "--n",
            1,
        ]
        return ["submit", tasks, *about, *options]

    return words


def samples(tmp_path: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]


def running(backend: str) -> int:
    return int(httpx.get(f"{backend}/fake", trust_env=False, timeout=30).json()["running"])


def wait_until_asked(backend: str, within_s: float = 120.0) -> None:
    """A backend tells of its requests only who asks."""
    deadline = time.monotonic() + within_s
    while running(backend) == 0:
        assert time.monotonic() < deadline, "the harness never asked"
        time.sleep(0.05)


def nothing_is_left(service: Up, mark: str) -> None:
    assert left(mark) == []
    for kept in ("sandboxes", "doors"):
        place = service.state / kept
        assert not place.is_dir() or list(place.iterdir()) == []


def test_its_limit_its_deadline_and_a_cancel_stop_it(
    up: Callable[..., Up],
    start_backend: Callable[..., str],
    submission: Callable[..., list[object]],
    mark: str,
    tmp_path: Path,
) -> None:
    backend = start_backend("--text", "Continue.")
    service = up("--sandbox", "bubblewrap", "--backend", backend)
    done = prorl(*submission(service, "limited", "--sampling", "max_turns=3"), timeout=200)
    assert done.returncode == 0, (done.stderr, service.said)
    [sample] = samples(tmp_path, "limited")
    assert (sample["outcome"], sample["reward"]) == ("truncated", 0)
    assert (sample["truncated_by"], sample["turns"]) == ("turns", 3)
    kept = sample["trajectory"]
    sampled = sum(sum(segment["loss_mask"]) for segment in kept["segments"])
    # Its end may come before one of its two processes has read its last answer.
    trained = [turn["completion_tokens"] for turn in kept["turns"] if not turn.get("left_out")]
    assert sampled == sum(trained) > 0
    nothing_is_left(service, mark)

    httpx.post(f"{backend}/fake", json={"latency_ms": 1_000}, trust_env=False)
    done = prorl(*submission(service, "late", "--limits", "run_ms=15000"), timeout=200)
    assert done.returncode == 0, (done.stderr, service.said)
    [sample] = samples(tmp_path, "late")
    assert (sample["outcome"], sample["truncated_by"], sample["reward"]) == ("truncated", "time", 0)
    assert running(backend) == 0
    nothing_is_left(service, mark)

    httpx.post(f"{backend}/fake", json={"latency_ms": 600_000}, trust_env=False)
    submit = subprocess.Popen(command(*submission(service, "cancelled")), stderr=subprocess.DEVNULL)
    try:
        wait_until_asked(backend)
        assert prorl("cancel", "run", "tasks", "--url", service.url).returncode == 0
        submit.wait(120)
    finally:
        submit.kill()
        submit.wait()
    [sample] = samples(tmp_path, "cancelled")
    assert (sample["outcome"], sample["reward"]) == ("cancelled", None)
    assert sample["stopped_ms"] is not None
    assert running(backend) == 0
    nothing_is_left(service, mark)


REACHER = """
import http.client, json, os, sys, urllib.request
there = http.client.HTTPConnection(*os.environ["HTTPS_PROXY"].removeprefix("http://").split(":"), timeout=60)
there.set_tunnel("localhost", int(sys.argv[2]))
there.request("GET", "/fake")
told = there.getresponse().read().decode()
headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
body = json.dumps({"messages": [{"role": "user", "content": "It says " + told}]}).encode()
urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/v1/chat/completions", body, headers)).read()
"""


def test_a_listed_host_is_reached_and_stands_in_the_record(
    up: Callable[..., Up],
    start_backend: Callable[..., str],
    mark: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the row that is submitted to the exported sample; a host that the operator does not name fails its job."""
    backend = start_backend("--text", "Continue.")
    port = backend.rpartition(":")[2]
    about = {"argv": ["python3", "-I", "-c", REACHER, "{address}", port], "environment": {"KEY": "{key}"}}
    (tmp_path / "agents" / "stubborn" / "harness.json").write_text(json.dumps(about))
    monkeypatch.setenv("PRORL_EGRESS", f"localhost:{port},127.0.0.1/32")
    payload = {**ROWS[QUICK], "agent": "stubborn"}
    rows = [
        {"task_id": name, "data_source": "swebench", "payload": payload, "egress": [host]}
        for name, host in (("listed", f"LocalHost:{port}"), ("other", "pypi.org"))
    ]
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    service = up("--sandbox", "bubblewrap", "--backend", backend)
    prorl("submit", tasks, "--out", tmp_path / "out.jsonl", "--url", service.url, "--n", 1, timeout=200)
    found = {sample["task_id"]: sample for sample in samples(tmp_path, "out")}
    [line] = found["listed"]["trajectory"]["egress"]
    assert (line["host"], line["connections"]) == (f"localhost:{port}", 1)
    assert line["received_bytes"] > 0
    assert "running" in found["listed"]["trajectory"]["segments"][0]["prompt_text"]
    assert found["other"]["outcome"] == "infra_error"
    assert "the task lists pypi.org:443 in egress, which PRORL_EGRESS" in found["other"]["error"]["message"]
