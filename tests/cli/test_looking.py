"""Looking at a service: on one screen, by a job's lines, and by what a doctor finds."""

import asyncio
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from prorl_mq.cli import doctor, logs
from prorl_mq.cli.looking import _turns, turns_text
from prorl_mq.cli.overview import CLEAR, overview, shown
from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.process.screen.tables import fitted
from prorl_mq.schema.items import Advance
from prorl_mq.schema.messages import JobStatus, Stage, events
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.timeline import timeline
from prorl_mq.schema.turns import CompletionSpan, LoggedCall, LoggedTurn, LoggedTurns
from prorl_mq.store import gauges, pools, runs
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import renewal
from tests.cli.conftest import Up, command, prorl
from tests.support.queue import RUN, Queue

ABOUT: dict[str, str | int] = {"stage": "init", "node": "n1", "slots": 2, "busy": 0, "pid": 1, "started_ms": 1}


@pytest.mark.anyio
async def test_the_status_of_a_busy_service_is_read_on_80_columns_and_24_lines(
    settings: RedisSettings, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty backends, runs with long names and reasons, two lanes: what matters most stays."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    redis = connect(settings)
    queue = Queue(redis, keys)
    await queue.prepare("n1", "n2")
    await queue.admitted()
    await queue.store.advance([Advance(held, None, b"") for held in await queue.take(Stage.INIT)])
    await queue.store.advance([Advance(held, None, b"") for held in await queue.take(Stage.RUN)])
    await queue.take(Stage.EVAL)
    for number in range(40):
        await pools.add(queue.store, "acme:policy", f"http://backend-with-a-long-name-{number:02}.cluster:8000")
    now = await gauges.read(queue.store)
    parts = await overview(queue.store, now)
    await redis.aclose()
    text = shown(parts, tall=True).splitlines()
    assert len(text) <= 23
    assert max(map(len, text)) <= 80
    assert any(re.match(r"eval +0 +1 +0 +0 +0 +\d+$", line) for line in text)
    assert any(re.match(r"lane +queued +held$", line) for line in text)
    assert any("more" in line for line in text)
    assert any(line.startswith("acme:r") for line in text)
    assert shown(parts, tall=False).count("backend-with-a-long-name") == 40


@pytest.mark.anyio
async def test_advise_tells_an_operator_what_limits_and_whose_run_it_is(
    settings: RedisSettings, keys: Keys, tmp_path: Path
) -> None:
    redis = connect(settings)
    queue = Queue(redis, keys)
    await queue.prepare("n1")
    for stage in Stage:
        about = [part for pair in {**ABOUT, "stage": stage.value}.items() for part in pair]
        await queue.command("HSET", keys.worker(stage.value), *about)
        await queue.command("ZADD", keys.workers, 1 << 50, stage.value)
    words = ["advise", "--redis", settings.url, "--namespace", settings.namespace, "--state-dir", tmp_path]
    asked = await asyncio.to_thread(prorl, *words)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout == "Nothing was submitted: 6 slots are free.\nSubmit a batch.\n"
    await runs.configure(queue.store, RUN, RunSettings(max_jobs=1))
    await queue.submit(n=2)
    told = json.loads((await asyncio.to_thread(prorl, *words, "--json")).stdout)
    assert told["limit"] == "quota"
    assert "acme:r: its next group has 2 samples and the run's max_jobs is 1" in told["says"]
    assert "prorl-mq run acme:r --max-jobs" in told["change"]
    assert told["figures"] == {"runs": 1, "groups": 1, "unacked_groups": 0}
    await redis.aclose()


@pytest.mark.anyio
async def test_a_worker_that_reads_nothing_is_named_while_work_waits(settings: RedisSettings, keys: Keys) -> None:
    """Its heartbeat, a thread of its own, says that it is alive."""
    redis = connect(settings)
    queue = Queue(redis, keys)
    await queue.prepare()

    async def told() -> tuple[bool, list[str]]:
        screen = "\n".join(await overview(queue.store, await gauges.read(queue.store)))
        return "no read was answered: init-1 (60 s)" in screen, [
            finding.said for finding in [each async for each in doctor.redis_findings(queue.store)] if finding.fix
        ]

    unfit = "this node scores no sums"
    for name, free, read_ms, waits in (
        ("init-1", 2, 60_000, ""),
        ("init-2", 0, 60_000, ""),
        ("init-3", 2, 900, ""),
        ("init-4", 2, 900, unfit),
    ):
        beat = renewal(keys, name, {**ABOUT, "free": free, "read_ms": read_ms, "waits": waits}, [], lease_ms=60_000)
        await queue.store.call("renew", beat.keys, beat.arguments)
    assert (await told())[0] is False
    await queue.admitted()
    seen, findings = await told()
    await redis.aclose()
    assert seen
    assert "init-1 has 2 free slots and work waits, but it read nothing for 60 s" in findings
    assert not any(said.startswith(("init-2", "init-3")) for said in findings)
    assert [said.endswith(unfit) for said in findings if said.startswith("init-4")] == [True]


class Restarted:
    """A job that begins again behind its second turn, as a client sees it."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def turns(self, _: str, after: int) -> LoggedTurns:
        self.asked.append(after)
        rollout = "first" if len(self.asked) <= 2 else "second"
        last = 2 if rollout == "first" else 1
        turns = [row(after, started_s=9.0 if rollout == "first" else 70.0)] if after < last else []
        return LoggedTurns(
            job_id="run:batch-0:0",
            rollout=rollout,
            turns=turns,
            under_way=None,
            next=after + len(turns),
            complete=False,
            note="",
        )


def row(number: int, *, started_s: float) -> LoggedTurn:
    return LoggedTurn(
        number=number, prompt_tokens=70, cached_tokens=None, ids=[1], logprobs=[-1.0], finish_reason="stop",
        stop_token=2, spans=[], llm_seconds=1.5, started_seconds=started_s,
    )  # fmt: skip


@pytest.mark.anyio
async def test_turns_of_two_rollouts_of_a_job_are_not_mixed() -> None:
    client = Restarted()
    told = await _turns(cast("AsyncClient", client), "run:batch-0:0")
    assert client.asked == [0, 1, 2, 0, 1]
    assert told == turns_text([row(0, started_s=70.0)])


def test_a_turn_is_a_row_with_its_policy_and_how_its_calls_ended() -> None:
    calls = [LoggedCall(result="r", ok=ok, refused=refused, seconds=0.25) for ok, refused in
             ((True, False), (False, False), (False, True))]  # fmt: skip
    turn = LoggedTurn(
        number=3, prompt_tokens=70, cached_tokens=None, ids=[1, 2], logprobs=[-1.0, -2.0], finish_reason="stop",
        stop_token=2, spans=[CompletionSpan(start=0, end=2, backend="b", version=("7", "8"))], llm_seconds=1.5,
        started_seconds=9.0, calls=calls,
    )  # fmt: skip
    cells = re.split(r" {2,}", turns_text([turn]).splitlines()[1].strip())
    assert cells == [
        "3",
        "70",
        "2",
        "stop",
        "7, 8",
        "1.500",
        "3",
        "0.750",
        "ok, failed, refused",
    ]


def test_the_longest_part_gives_way_to_the_others() -> None:
    parts = ["head\na\nb", "\n".join(["head", *map(str, range(30))])]
    assert fitted(parts, 80, 10).splitlines() == ["head", "a", "b", "", "head", "0", "1", "2", "3", "... 26 more"]
    assert fitted(["a" * 90], 80, 10) == "a" * 77 + "..."


def test_a_jobs_lines_are_its_events_and_what_logs_say_of_it_in_order_of_time(tmp_path: Path) -> None:
    line = "1790000000500\tclaim\tinit\t1\tinit-1\t\n1790000002500\tadvance\trun\t1\tinit-1\tsandbox=n/l/b\n"
    status = JobStatus(
        job_id="r:g:1", group_id="g", batch_id="b", run_id="r", state="queued", stage="run", attempt=0, owner=None,
        outcome=None, why="",
    )  # fmt: skip
    about = {"time": "2026-09-21T14:13:21.000+00:00", "level": "WARNING", "logger": "workers", "message": "slow"}
    rows = [{**about, "job": "r:g:1"}, {**about, "job": "r:g:11"}, {**about, "message": "of default:r:g:1 too"}]
    (tmp_path / "run-1.log").write_text("".join(json.dumps(row) + "\n" for row in rows) + "no time, r:g:1\nr:g:12\n")
    found = sorted([*logs.told(timeline(status, events("r:g:1", line), 0)), *logs.logged("r:g:1", tmp_path.glob("*"))])
    assert found == [
        "2026-09-21 14:13:20.500 event claim init init-1",
        "2026-09-21 14:13:21.000 run-1 WARNING workers of default:r:g:1 too",
        "2026-09-21 14:13:21.000 run-1 WARNING workers slow",
        "2026-09-21 14:13:22.500 event advance run init-1 sandbox=n/l/b",
        "run-1 no time, r:g:1",
    ]


def watched(*words: object, screens: int = 2) -> list[list[str]]:
    """What a command shows one after the other on a terminal of 80×24, until Ctrl-C is pressed on it."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (24, 80))
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    process = subprocess.Popen(
        ["env", "--default-signal=INT", *command(*words)],  # a background job of a shell ignores it
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment,
        start_new_session=True,
    )
    os.close(its)
    said = ""
    deadline = time.monotonic() + 120
    while said.count(CLEAR) <= screens:
        ready, _, _ = select.select([ours], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, said
        said += os.read(ours, 65536).decode()
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # which is how it says that nobody has it open any more
        while os.read(ours, 65536):
            pass
    assert process.wait(60) == 130
    os.close(ours)
    return [screen.replace("\r\n", "\n").rstrip("\n").split("\n") for screen in said.split(CLEAR)[1 : screens + 1]]


@pytest.mark.timeout(400)  # commands that import a tokenizer library
def test_a_doctor_finds_nothing_wrong_with_a_healthy_service_and_says_how_to_mend_a_sick_one(
    up: Callable[..., Up], start_backend: Callable[..., str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    service = up("--sandbox", "none", "--backend", start_backend())
    assert service.url
    words = ("doctor", "--state-dir", service.state, "--sandbox", "none")
    healthy = prorl(*words, "--tokenizer", tokenizer_dir, timeout=150)
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    for what in ("versions", "tokenizer", "redis", "workers", "backend"):
        assert re.search(rf"^ok +{what} ", healthy.stdout, re.MULTILINE), healthy.stdout
    screens = watched("status", "--watch", "1", "--state-dir", service.state)
    for screen in screens:
        assert len(screen) < 24
        assert max(map(len, screen)) <= 80
        assert [line for line in screen if re.match(r"(init|run|eval) +0 +0 +1 +0 +\d+ +0$", line)] == screen[3:6]
    assert [re.sub(r"\d+ a minute", "N a minute", screen[7]) for screen in screens] == [
        "ended: none yet", "ended: none yet; N a minute",
    ]  # fmt: skip
    assert service.end() == 0
    sick = prorl(*words, "--tokenizer", tmp_path, "--backend", "http://127.0.0.1:9", timeout=150)
    assert sick.returncode == 1
    faults = re.findall(r"^FAIL +(\w+).*\n +fix: (.+)$", sick.stdout, re.MULTILINE)
    assert {what for what, _ in faults} == {"tokenizer", "redis", "backend"}
    assert sick.stdout.count("FAIL") == len(faults)
