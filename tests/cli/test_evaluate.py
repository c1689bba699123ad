"""`prorl-mq evaluate` as a user runs it, on a service of real processes: killed, resumed, changed, compared."""

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import reasoning_gym

from prorl_mq.client import Client
from tests.cli.conftest import Up, command, prorl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
Start = Callable[..., Up]
Backend = Callable[..., str]
CONFIG = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
JUDGED = {
    "prompt": [{"role": "user", "content": "How fast is light?"}],
    "reward_model": {"ground_truth": "300000 kilometres each second"},
    "tools": False,
}


def sums(wanted: int, count: int) -> list[int]:
    """Seeds of sums, so many whose answer is the number, and as many others."""
    found: dict[bool, list[int]] = {True: [], False: []}
    for seed in range(1_000):
        answer = reasoning_gym.create_dataset("chain_sum", seed=seed, size=1, **CONFIG)[0]["answer"]
        found[answer == str(wanted)].append(seed)
    return found[True][:count] + found[False][:count]


def row(seed: int) -> dict[str, Any]:
    payload = {"name": "chain_sum", "seed": seed, "size": 1, "config": CONFIG, "tools": False}
    return {"task_id": f"sum-{seed}", "data_source": "reasoning_gym", "payload": payload}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Four sums that are 7 and four that are not; the backends say 7, or 8."""
    (tmp_path / "rows").mkdir()
    lines = [json.dumps(row(seed)) for seed in sums(7, 4)]
    (tmp_path / "rows" / "sums.jsonl").write_text("\n".join(lines) + "\n")
    path = tmp_path / "sums.toml"
    path.write_text(
        'name = "sums"\nn = 2\n[prices]\nprompt = 1.0\ncompletion = 2.0\n[sampling]\nseed = 1\n'
        '[[sets]]\nname = "sums"\nrows = "rows/sums.jsonl"\n'
    )
    return path


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]


def results(out: Path) -> Any:
    return json.loads((out / "results.json").read_text())


def forget(out: Path, keep: int) -> None:
    """Makes the directory one of another service, or of one that has lost its data: of a run that nobody knows."""
    run_id = json.loads((out / "evaluation.json").read_text())["run_id"]
    there = (out / "samples.jsonl").read_text().splitlines(keepends=True)[:keep]
    (out / "samples.jsonl").write_text("".join(there))
    for file in (out / "samples.jsonl", out / "evaluation.json"):
        file.write_text(file.read_text().replace(run_id, f"{run_id}-lost"))


def serve_from(service: Up, backend: str, root: str) -> None:
    """Has a backend say that it loaded its model there, and waits until the service has asked it."""
    httpx.post(f"{backend}/fake", json={"model_root": root}).raise_for_status()
    with Client(service.url) as client:
        deadline = time.monotonic() + 60
        while [each.served for each in client.policy("policy").backends] != [f"policy ({root})" if root else "policy"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)  # the service looks every two seconds, and tells nobody


def wait_for_samples(out: Path, process: "subprocess.Popen[str]", count: int) -> None:
    file, deadline = out / "samples.jsonl", time.monotonic() + 120
    while not (file.exists() and file.read_bytes().count(b"\n") >= count):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        with pytest.raises(subprocess.TimeoutExpired):  # which waits for either
            process.wait(0.05)


def test_a_killed_evaluation_is_continued_and_nothing_is_sampled_twice(
    up: Start, start_backend: Backend, suite: Path, tmp_path: Path
) -> None:
    slow = start_backend("--latency-ms", 1_200, "--slots", 2)
    service = up("--sandbox", "none", "--backend", slow)
    out = tmp_path / "out"
    words = ("evaluate", suite, "--out", out, "--url", service.url)
    for number, code, told in ((signal.SIGINT, 130, "run the same command again"), (signal.SIGKILL, -9, "")):
        before = len(lines(out)) if out.exists() else 0
        first = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for_samples(out, first, before + 2)
        first.send_signal(number)
        said = first.communicate()[1]
        assert (first.returncode, told in said) == (code, True)
    assert 4 <= len(lines(out)) < 16, "it was killed on the way"

    serve_from(service, slow, "/models/other")
    other = prorl(*words)
    assert other.returncode == 2
    assert f"was begun with policy, and {slow} serves policy (/models/other): evaluate it under another" in other.stderr
    serve_from(service, slow, "")

    done = prorl(*words)
    assert done.returncode == 0, done.stderr
    found = lines(out)
    assert Counter(line["task_id"] for line in found) == {line["task_id"]: 2 for line in found}
    assert len({line["job_id"] for line in found}) == len(found) == 16
    [submitted] = json.loads((out / "evaluation.json").read_text())["submitted"]
    assert submitted["round"] == 0
    total = results(out)["total"]
    assert (total["samples"], total["scored"], total["solved"]) == (16, 16, 8)
    assert total["pass_at"]["1"]["value"] == 0.5
    assert total["cost"]["money"] == pytest.approx(
        (total["cost"]["prompt_tokens"] + 2 * total["cost"]["completion_tokens"]) / 1e6
    )
    assert "16 of 16 samples of 8 tasks are scored" in done.stdout

    again = prorl(*words, "--json", "--fail-under", 0.6)
    assert again.returncode == 1
    assert "pass@1 0.500 is below --fail-under 0.6" in again.stderr
    assert (lines(out), json.loads(again.stdout)["total"]) == (found, total)

    forget(out, keep=5)
    for made in (11, 0):
        restored = prorl(*words)
        assert (restored.returncode, "0 of 0" in restored.stderr) == (0, False), restored.stderr
        assert (f"{made} of 16 samples are to be made" in restored.stderr) == bool(made)
        found = lines(out)
        assert len(found) == 16

    text = suite.read_text()
    suite.write_text(text.replace("seed = 1", "seed = 2"))
    changed = prorl(*words)
    assert changed.returncode == 2
    assert "set 'sums': sampling.seed was 1, and is 2" in changed.stderr
    suite.write_text(text)
    assert prorl(*words, "--n", 3).stderr.count("n was 2, and is 3") == 1
    assert lines(out) == found


def test_two_policies_are_compared_and_reports_are_made_again_without_a_service(
    up: Start, start_backend: Backend, suite: Path, tmp_path: Path
) -> None:
    service = up("--sandbox", "none", "--backend", start_backend())
    words = ("evaluate", suite, "--url", service.url)
    nobody = prorl(*words, "--pool", "nobody", "--out", tmp_path / "nobody")
    assert (nobody.returncode, "pool 'nobody' has no backend" in nobody.stderr) == (2, True)

    assert prorl(*words, "--out", tmp_path / "one").returncode == 0
    add = "import sys; from prorl_mq.client import Client; Client(sys.argv[1]).add_backend('other', sys.argv[2])"
    other = start_backend("--text", "It is <answer>8</answer>")
    subprocess.run([*command()[:1], "-c", add, service.url, other], check=True)
    done = prorl(*words, "--out", tmp_path / "two", "--pool", "other", "--compare", tmp_path / "one")
    assert done.returncode == 0, done.stderr
    found = results(tmp_path / "two")["comparison"]
    assert (found["compared"], found["left_out"], found["total"]["losses"]) == (8, 0, 4)
    assert found["total"]["difference"] == pytest.approx(
        results(tmp_path / "two")["total"]["pass_at"]["1"]["value"] - 0.5
    )
    service.end()

    page = tmp_path / "one" / "report.html"
    before = page.read_bytes()
    page.unlink()
    made = prorl("evaluate", "--report", tmp_path / "one")
    assert (made.returncode, page.read_bytes()) == (0, before)
    against = prorl("evaluate", "--report", tmp_path / "one", "--compare", tmp_path / "two" / "results.json")
    assert against.returncode == 0
    assert "4 wins" in against.stdout
    assert prorl("evaluate", "--report", tmp_path).returncode == 2
    assert prorl("evaluate").returncode == 2
    shown = prorl("view", tmp_path / "one" / "samples.jsonl", "--bundle", tmp_path / "one" / "view")
    assert (shown.returncode, "16 trajectories" in shown.stdout) == (0, True)


def test_what_infrastructure_loses_is_no_failure_and_is_sampled_again(
    up: Start, start_backend: Backend, suite: Path, tmp_path: Path
) -> None:
    """No judge is configured: that row has no result, and counts neither as solved nor as failed. Rows that the
    service refuses are named, and may be changed.
    """
    rows = [row(sums(7, 1)[0]), {"task_id": "light", "data_source": "stem", "payload": JUDGED}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (tmp_path / "mixed.toml").write_text(
        'name = "mixed"\n[limits]\nmax_attempts = 1\n[[sets]]\nname = "all"\nrows = "rows.jsonl"\n'
    )
    service = up("--sandbox", "none", "--backend", start_backend())
    words = ("evaluate", tmp_path / "mixed.toml", "--out", tmp_path / "out", "--url", service.url)
    for started in (1, 2):
        done = prorl(*words)
        assert done.returncode == 1
        assert "1 of 2 samples have no result" in done.stderr
        total = results(tmp_path / "out")["total"]
        assert (total["scored"], total["solved"], total["pass_at"]["1"]["value"]) == (1, 1, 1.0)
        assert (total["worst"], total["best"]) == (0.5, 1.0)
        assert Counter(line["task_id"] for line in lines(tmp_path / "out"))["light"] == started
    assert "ServiceMissing" in (tmp_path / "out" / "report.md").read_text()

    rows_file = tmp_path / "rows" / "sums.jsonl"
    text = rows_file.read_text()
    rows_file.write_text(text.replace('"reasoning_gym"', '"reasoning_gim"', 1))
    words = ("evaluate", suite, "--out", tmp_path / "refused", "--url", service.url)
    refused = prorl(*words)
    assert (refused.returncode, "reasoning_gim" in refused.stderr) == (2, True)
    assert "to get the rest" not in refused.stderr
    rows_file.write_text(text)
    assert prorl(*words).returncode == 0, "nothing had a sample, so it may change"
