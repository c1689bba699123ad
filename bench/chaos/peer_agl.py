"""Agent Lightning's server, as its command starts it: rollouts are taken and ended over its HTTP API by four runners.

Prints one line of JSON: sent, lost, duplicated, doubled, left over, recovery of each kill. It runs in its environment.
"""
# mypy: disable-error-code="import-not-found,import-untyped,no-any-return"

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

from bench.chaos.peer_marks import WORK_S

RUNNERS, PATIENCE_S, TIMES = 4, 30.0, 3


class Server:
    """The server process on one port."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        command = [str(Path(sys.executable).with_name("agl-server")), f"port={port}", "host=127.0.0.1"]
        self.command = [*command, "hydra.run.dir=.", "hydra.output_subdir=null"]
        self.start()

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(self.command, stdin=quiet, stdout=quiet, stderr=quiet)
        while True:
            try:
                httpx.get(f"{self.url}/healthz", timeout=5)
            except httpx.HTTPError:
                time.sleep(0.1)
            else:
                return

    def hurt(self, kind: str) -> float:
        """Kills it and starts it again, or stops it for a while: when that was over."""
        if kind == "server killed":
            self.process.kill()
            self.process.wait()
            self.start()
        else:
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(3.6)
            self.process.send_signal(signal.SIGCONT)
        return time.monotonic()


class Load:
    """Rollouts that were accepted, and what became of them."""

    def __init__(self, url: str) -> None:
        self.url, self.over = url, False
        self.accepted: dict[str, float] = {}
        self.begun: Counter[str] = Counter()
        self.ended: dict[str, list[float]] = {}

    def send(self, jobs: int, pace: float) -> None:
        with httpx.Client(base_url=self.url, timeout=10) as client:
            for number in range(jobs):
                body = [{"rollout_id": f"j{number}", "input": {"data_id": str(number)}, "is_train": True}]
                while not answered(client, "POST", "/api/rollouts", body):
                    time.sleep(0.1)
                self.accepted[f"j{number}"] = time.monotonic()
                time.sleep(1 / pace)

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=10) as client:
            while not self.over:
                found = answered(client, "GET", "/api/rollouts?state_in=queuing&limit=8", None)
                for rollout in found or ():
                    self.take(client, rollout["rollout_id"])
                if not found:
                    time.sleep(0.05)

    def take(self, client: httpx.Client, name: str) -> None:
        path = f"/api/rollouts/{name}"
        if answered(client, "PATCH", path, {"status": {"state": "running"}}):
            self.begun[name] += 1
            time.sleep(WORK_S)
            if answered(client, "PATCH", path, {"status": {"state": "succeeded"}}):
                self.ended.setdefault(name, []).append(time.monotonic())


def answered(client: httpx.Client, method: str, path: str, body: object) -> object:
    """The answer; None where there is none, or a refusal."""
    try:
        answer = client.request(method, path, json=body)
    except httpx.HTTPError:
        return None
    return answer.json() if answer.is_success else None


def main() -> None:
    kind, jobs, seconds, port = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    server = Server(port)
    load = Load(server.url)
    sender = threading.Thread(target=load.send, args=(jobs, jobs / seconds))
    runners = [threading.Thread(target=load.run) for _ in range(RUNNERS)]
    for thread in (sender, *runners):
        thread.start()
    kills = []
    time.sleep(2.0)
    while len(kills) < TIMES:
        at = time.monotonic()
        kills.append((at, server.hurt(kind)))
        time.sleep(2.0)
    sender.join()
    last, since = -1, time.monotonic()
    while len(load.ended) < jobs and time.monotonic() - since < PATIENCE_S:
        if len(load.ended) != last:
            last, since = len(load.ended), time.monotonic()
        time.sleep(0.2)
    load.over = True
    for thread in runners:
        thread.join()
    with httpx.Client(base_url=server.url, timeout=10) as client:
        left = answered(client, "GET", "/api/rollouts?state_in=queuing&state_in=running&limit=100000", None) or []
    server.process.kill()
    server.process.wait()
    recovery = []
    for began, over in kills:
        hit = [
            name
            for name, at in load.accepted.items()
            if at < began and not any(e <= began for e in load.ended.get(name, []))
        ]
        late = [max(0.0, load.ended[name][0] - over) for name in hit if name in load.ended]
        recovery.append(max(late, default=0.0) if len(late) == len(hit) else None)
    print(json.dumps({
        "jobs": len(load.accepted), "faults": len(kills), "lost": len(load.accepted.keys() - load.ended.keys()),
        "duplicated": sum(len(times) - 1 for times in load.ended.values()),
        "doubled": load.begun.total() - len(load.begun), "left_over": len(left), "recovery": recovery,
    }))  # fmt: skip
    os._exit(0)


if __name__ == "__main__":
    main()
