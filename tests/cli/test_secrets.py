"""Secrets after a real run, with all processes as talkative as they can be."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from prorl_mq import BatchRequest, GroupRequest, Task
from prorl_mq.client import Client
from tests.cli.conftest import Up, below, names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
KEY, TRUTH = "sk-key-of-the-backend-5be1", "48151623421"


def test_no_token_key_or_sealed_field_is_in_logs_metrics_records_or_command_lines(
    up: Callable[..., Up], start_backend: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[keys]]\nbackends = ["127.0.0.1"]\nkey = "{KEY}"\n')
    keys.chmod(0o600)
    monkeypatch.setenv("PRORL_BACKEND_KEYS", str(keys))
    monkeypatch.setenv("PRORL_LOG", "DEBUG")
    sealed = {"prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": TRUTH}, "tools": []}
    task = Task(task_id="secret-sum", data_source="math_dapo", payload=sealed)
    service = up("--sandbox", "none", "--backend", start_backend())
    with Client(service.url) as client:
        client.submit(BatchRequest(run_id="talkative", batch_id="b", groups=[GroupRequest(task=task)]))
        closed = next(iter(client.groups("talkative", batch_id="b")))
    [sample] = closed.record.samples
    assert sample.outcome == "completed", sample
    job, group = sample.job_id, sample.job_id.rpartition(":")[0]
    asked = ["runs/talkative", "runs/talkative/groups", f"groups/{group}", f"jobs/{job}", f"jobs/{job}/timeline",
             f"jobs/{job}/trajectory", "overview", "advice", "pools/policy/backends", "watch?seconds=0"]  # fmt: skip
    listeners = [json.loads(each.read_bytes())[0]["targets"][0] for each in (service.state / "metrics").iterdir()]
    pages = [f"{service.url}/v1/{path}" for path in asked]
    pages += [f"http://{place}/metrics" for place in (service.url.removeprefix("http://"), *listeners)]
    with httpx.Client(headers=service.headers, trust_env=False, timeout=60) as http:
        places = {page: http.get(page).raise_for_status().text for page in pages}
    logs = {f"log {each.name}": each.read_text() for each in (service.state / "logs").iterdir()}
    processes = {f"process {pid}": line for pid, line in names(below(service.process.pid)).items()}
    places |= {**logs, **processes, "record": str(closed.record)}
    secrets = {"token": service.token, "key": KEY, "sealed field": TRUTH}
    assert [(what, name) for what, secret in secrets.items() for name, text in places.items() if secret in text] == []
    for shown in (places["record"], *(places[page] for page in pages[:1])):
        assert "talkative" in shown, "the control: what is no secret is there"
    assert "workers.stages" in "".join(logs.values())
    assert len(listeners) >= 3
    assert (service.state / "token").stat().st_mode & 0o077 == 0
