"""rq-dashboard beside a service, as a user starts and opens it."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.conftest import Up, command, prorl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WITHIN_S = 120.0
STAGES = ["eval", "init", "run"]


def address(said: str) -> str:
    return next(word for line in said.splitlines() if "dashboard" in line for word in line.split() if "token=" in word)


@contextlib.contextmanager
def opened(url: str) -> Iterator[httpx.Client]:
    """A browser that has followed the printed address."""
    with httpx.Client(base_url=url.partition("/?")[0], timeout=30, trust_env=False, follow_redirects=True) as client:
        assert client.get(f"/?{url.partition('?')[2]}").status_code == 200
        yield client


def until_listening(url: str) -> None:
    """Waits until the page of another process can be opened."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            with opened(url):
                return
        except httpx.ConnectError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def until_shown(client: httpx.Client) -> list[str]:
    """The stages of the workers that the page lists, once it lists all: the mirror is a process of its own."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        workers = client.get("/0/data/workers.json").json()["workers"]
        if len(workers) >= len(STAGES) or time.monotonic() > deadline:
            return sorted(worker["queues"][0] for worker in workers)
        time.sleep(0.05)


def until_finished(client: httpx.Client, jobs: int) -> dict[str, Any]:
    """Waits until EVAL's registry has so many."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        queues = {each["name"]: each for each in client.get("/0/data/queues.json").json()["queues"]}
        if queues and queues["eval"]["finished_job_registry_count"] == jobs:
            return queues
        assert time.monotonic() < deadline, queues
        time.sleep(0.05)


def test_a_run_of_real_workers_shows_on_the_dashboard(
    up: Callable[..., Up], start_backend: Callable[..., str], tasks: Callable[..., Path], tmp_path: Path
) -> None:
    """`up` starts it, prints where it is, and ends it; its records can be written again meanwhile."""
    service = up("--sandbox", "none", "--backend", start_backend(), dashboard=True)
    url = service.url
    submit = ("submit", tasks(3), "--n", 2, "--out", tmp_path / "out.jsonl", "--url", url)
    with opened(address(service.said)) as client:
        assert until_shown(client) == STAGES
        assert prorl(*submit, timeout=240).returncode == 0
        queues = until_finished(client, 6)
        assert [queues[stage]["finished_job_registry_count"] for stage in STAGES] == [6, 6, 6]
        rows = client.get("/0/data/jobs/eval/finished/100/asc/1.json").json()["jobs"]
        assert sorted(row["description"].partition(" (")[0] for row in rows) == [
            "sum-0", "sum-0", "sum-1", "sum-1", "sum-2", "sum-2",
        ]  # fmt: skip
        job = client.get(f"/0/data/job/{rows[0]['id']}.json").json()
        assert (job["status"], job["result"]["outcome"]) == ("finished", "completed")
        assert job["result"].get("turns", 1) == 1  # not told of what was acknowledged before the mirror looked
        assert job["enqueued_at"] <= job["started_at"] <= job["ended_at"]
        done = prorl("dashboard", "--rebuild", "--state-dir", service.state, timeout=240)
        assert (done.returncode, "was rebuilt" in done.stderr) == (0, True)
    assert service.end() == 0
    with pytest.raises(httpx.ConnectError), opened(address(service.said)):
        pass


def test_it_can_be_started_beside_a_service_that_runs_already(up: Callable[..., Up]) -> None:
    """And is told apart from one that does not."""
    service = up("--sandbox", "none")
    assert service.url
    assert "--no-dashboard" in service.said
    argv = command("dashboard", "--state-dir", service.state, "--port", 0)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = address(process.stdout.readline())
    until_listening(url)
    with opened(url) as client:
        assert client.get("/0/view/workers").status_code == 200
    process.send_signal(signal.SIGINT)
    assert process.wait(WITHIN_S) == 0
    process.stdout.close()


def test_without_a_service_it_says_what_to_start(tmp_path: Path) -> None:
    done = prorl("dashboard", "--state-dir", tmp_path)
    assert (done.returncode, "start one with `prorl-mq up`" in done.stderr) == (2, True)
