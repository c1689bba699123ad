"""A whole service of real processes to look at: Redis, workers, a fake backend, and the API on a free port."""

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from prorl_mq.schema.messages import Stage
from tests.support.world import ROOT, World

PLUGIN = ROOT / "tests" / "ui" / "plugin"
STATE = Path(os.environ.get("PRORL_STATE_DIR", ROOT / ".state")).absolute()
CHROMIUM = STATE / "browser" / "chromium-headless"
AXE = STATE / "browser" / "axe.min.js"
PATIENCE_S = 90.0
ADDRESS = re.compile(r"http://\S+\s")  # the whole of it: a blank follows


class Stand:
    """`start` it, `submit` to it, `stop` it."""

    def __init__(self, directory: Path, *, slots: int = 32, backends: int = 1) -> None:
        self.backends = [f"backend-{number}" for number in range(backends)]
        self.addresses: list[str] = []
        self.world = World(directory, handlers="story", lease_ms=15_000, slots=slots)
        self.world.env["PYTHONPATH"] = f"{PLUGIN}:{ROOT}"
        self.url = ""
        self.client = httpx.Client(timeout=60, trust_env=False)

    def start(self) -> None:
        world = self.world
        world.start_redis()
        self.url = self.start_api("api-0")
        self.client.base_url = httpx.URL(self.url)
        for stage in Stage:
            world.start_worker(stage)
        self.addresses = [self.start_backend(name) for name in self.backends]
        self.version(1)
        for address in self.addresses:
            self.client.post("/v1/pools/policy/backends", json={"address": address}).raise_for_status()
        self.announce(1)
        self.until(lambda: all(each["workers"] for each in self.get("overview")["stages"]), "every stage has a worker")

    def start_api(self, name: str, *flags: str) -> str:
        """One more API process, and its address."""
        entry = () if {"--tokens", "--state-dir"} & set(flags) else ("--open",)
        return self.listening(name, [sys.executable, "-m", "api", "--port", "0", *entry, *flags])

    def start_backend(self, name: str) -> str:
        return self.listening(name, [sys.executable, "-m", "prorl_mq.testing.fake_backend", "--port", "0"])

    def start_dashboard(self) -> str:
        """rq-dashboard, and the address that it is opened by."""
        prorl = Path(sys.executable).parent / "prorl-mq"
        argv = [str(prorl), "dashboard", "--redis", self.world.settings.url, "--port", "0"]
        address = self.listening("dashboard", argv)  # it says so before it does
        self.until(lambda: httpx.get(address, trust_env=False).status_code < 400, "rq-dashboard can be opened")
        return address

    def listening(self, name: str, argv: list[str]) -> str:
        """A process that says where it listens, and that address."""
        self.world.apis[name] = self.world.start(name, argv)
        self.until(lambda: ADDRESS.search(self.world.log(name)), f"{name} listens")
        found = ADDRESS.search(self.world.log(name))
        assert found is not None
        return found.group().strip()

    def stop(self) -> None:
        self.client.close()
        self.world.stop()

    def get(self, path: str, **query: Any) -> Any:
        return self.client.get(f"/v1/{path}", params=query).raise_for_status().json()

    def version(self, version: int) -> None:
        """What the backends say they serve."""
        for address in self.addresses:
            url = f"{address}/update_weight_version"
            httpx.post(url, json={"new_version": str(version)}, trust_env=False).raise_for_status()

    def announce(self, version: int) -> None:
        body = {"version": version, "mode": "keep"}
        self.client.post("/v1/pools/policy/policy", json=body).raise_for_status()

    def submit(self, run: str, batch: str, tasks: list[tuple[str, dict[str, Any]]], n: int = 2, **more: Any) -> None:
        """`tasks`: the id and the tale of each."""
        groups = [{"task": {"task_id": name, "data_source": "story", "payload": tale}, "n": n} for name, tale in tasks]
        body = {"run_id": run, "batch_id": batch, "groups": groups, **more}
        answer = self.client.post("/v1/batches", json=body)
        assert answer.status_code == 202, answer.text

    def closed(self, run: str, count: int) -> list[dict[str, Any]]:
        """The first records of a run, waited for."""
        found: list[dict[str, Any]] = []
        after, give_up = "0", time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < give_up, f"{run}: {len(found)} of {count} groups closed"
            page = self.get(f"runs/{run}/results", after=after, wait=20)
            after = page["cursor"]
            found += [each["group"] for each in page["results"] if "group" in each]
        return found

    def until(self, true: Any, what: str) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not _held(true):
            assert time.monotonic() < give_up, f"it never came that {what}"
            ended = [name for name, each in self.world.workers.items() if each.poll() is not None]
            assert not ended, f"{ended[0]} ended: {self.world.log(ended[0])[-2000:]}"
            time.sleep(0.05)


def _held(true: Any) -> bool:
    try:
        return bool(true())
    except (FileNotFoundError, httpx.ConnectError):
        return False


def tale(
    *scripts: list[dict[str, Any]], prompt: str = "Count the files.", rewards: tuple[float, ...] = (0.0, 1.0)
) -> dict[str, Any]:
    return {"prompt": prompt, "scripts": list(scripts), "rewards": list(rewards)}


def scene(text: str, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"text": text, "calls": list(calls), **more}


def call(name: str, arguments: str, result: str, *, ok: bool = True, seconds: float = 0.25) -> dict[str, Any]:
    return {"name": name, "arguments": arguments, "result": result, "ok": ok, "seconds": seconds}
