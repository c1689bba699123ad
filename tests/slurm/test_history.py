"""The history of a deployment: every loss and every repair once, whoever looks."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm import __main__ as cli
from slurm.report import past
from slurm.supervisor import history as history_module
from slurm.supervisor.history import DeploymentHistory, LastLook, SeenTask, changes, read, seen
from slurm.tasks import SlurmTask
from tests.slurm.conftest import Fake

SERVERS = frozenset({"redis", "api"})


def task(id_: str, state: str = "RUNNING", node: str = "n1", job: str = "a", reason: str = "") -> SlurmTask:
    return SlurmTask(id=id_, deployment="d", job=job, state=state, node=node, run_s=9, left="", reason=reason)


def ran(node: str = "n1") -> LastLook:
    return LastLook(tasks={"1_0": SeenTask(alive=True, node=node), "2": SeenTask(alive=True, node=node)})


WAITS = task("1_0", "PENDING", "", reason="BeginTime")


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (ran(), task("1_0", "NODE_FAIL"), ["1_0 (a): has ended on n1: its node failed"]),
        (ran(), WAITS, ["1_0 (a): was lost on n1 and waits to run again (BeginTime)"]),
        (ran(), task("1_0", node="n2"), ["1_0 (a): was lost on n1 and runs again on n2"]),
        (ran(), task("1_0", "COMPLETED"), []),
        (ran(), task("1_0"), []),
        (LastLook(), task("1_0"), []),
        (seen(ran(), [WAITS], {}), task("1_0", node="n2"), ["1_0 (a): runs again on n2"]),
        (LastLook(), task("2", node="n3", job="redis"), ["2 (redis): runs on n3"]),
        (ran(), task("2", "COMPLETED", job="redis"), ["2 (redis): has ended on n1: it ended as COMPLETED"]),
        (ran(), task("2", "TIMEOUT", job="redis"), ["2 (redis): has ended on n1: it reached its time limit"]),
        (LastLook(), task("2", "COMPLETED", job="redis"), []),
    ],
)  # fmt: skip
def test_a_change_is_told_once(before: LastLook, now: SlurmTask, said: list[str]) -> None:
    before = replace(before, tasks={id_: known for id_, known in before.tasks.items() if id_ == now.id})
    assert [f"{about}: {text}" for about, text in changes(before, [now], {}, SERVERS)] == said
    assert list(changes(seen(before, [now], {}), [now], {}, SERVERS)) == []


def test_nodes_go_and_come() -> None:
    nodes = {"n1": "idle", "n2": "down*", "n3": "drained"}
    tasks = [task("1_0", node="n[1-3]")]
    told = list(changes(LastLook(), tasks, nodes, SERVERS))
    assert told == [("n2", "is down*, and does not answer"), ("n3", "is drained")]
    after = replace(seen(LastLook(), tasks, nodes), tasks={})
    assert list(changes(after, [], nodes, SERVERS)) == []
    assert list(changes(after, [], {**nodes, "n2": "mixed"}, SERVERS)) == [("n2", "is back (mixed)")]


@pytest.mark.parametrize("used", [True, False])
def test_nodes_of_others_are_left_out(used: bool) -> None:
    """A cluster has hundreds. The control has run a task on one of them."""
    look, nodes = LastLook(), {f"n{number}": "down*" for number in range(500)}
    now = [task("1_0", "NODE_FAIL", "n7")] if used else []
    assert [about for about, _ in changes(look, now, nodes, SERVERS) if about.startswith("n")] == ["n7"] * used
    assert dict(seen(look, now, nodes).nodes) == ({"n7": "down*"} if used else {})


def test_a_running_task_that_slurm_has_forgotten_is_told_once() -> None:
    look = seen(LastLook(), [task("1_0"), task("1_1", "COMPLETED"), task("1_2", "PENDING", "")], {})
    said = ("1_0 (a)", "ran on n1, and Slurm does not know it any more")
    assert list(changes(look, [], {}, SERVERS)) == [said]
    assert list(changes(seen(look, [], {}), [], {}, SERVERS)) == []


def test_a_task_that_waits_for_long_is_known_when_it_runs_again() -> None:
    look = seen(ran(), [task("1_0", "PENDING", "")], {})
    look = seen(look, [task("1_0", "PENDING", "")], {})
    assert list(changes(look, [task("1_0", node="n2")], {}, SERVERS)) == [("1_0 (a)", "runs again on n2")]


def test_the_next_supervisor_does_not_tell_it_again(tmp_path: Path) -> None:
    lost = [task("1_0", "NODE_FAIL")]
    for who in ("job 7 on n1:1", "job 8 on n2:2"):
        DeploymentHistory(tmp_path, who).look(lost, {}, SERVERS)
    [event] = read(tmp_path)
    assert (event.who, event.about, event.text) == ("job 7 on n1:1", "1_0 (a)", "has ended on n1: its node failed")


def test_the_file_is_bounded_and_its_newest_part_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "LIMIT_BYTES", 2_000)
    kept = DeploymentHistory(tmp_path, "a:1")
    for number in range(100):
        kept.add("redis", f"event {number}")
        assert (tmp_path / "history.jsonl").stat().st_size < 2_200
    found = [event.text for event in read(tmp_path)]
    assert found == [f"event {number}" for number in range(100 - len(found), 100)]
    assert len(found) >= 10


def test_a_torn_line_hides_no_other(tmp_path: Path) -> None:
    kept = DeploymentHistory(tmp_path, "a:1")
    kept.add("redis", "one")
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"at":1,"wh\n')
    kept.add("redis", "two")
    assert [event.text for event in read(tmp_path)] == ["one", "two"]
    assert past(read(tmp_path)).endswith("two")


def test_status_tells_it(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`scale` has looked; the text has the newest events, the JSON all."""
    spec = tmp_path / "d.toml"
    spec.write_text(f'name = "d"\nshared = "{tmp_path / "shared"}"\n[redis]\n')
    fake.answers("squeue", "9|d.redis|NODE_FAIL|n1|1:00|59:00|None\n")
    fake.answers("sinfo", "n1|down*\n")
    assert cli.main(["scale", "--spec", str(spec)]) == 0
    capsys.readouterr()
    cli.main(["status", "--spec", str(spec)])
    said = capsys.readouterr().out
    assert "9 (redis)" in said.partition("history (UTC)")[2]
    cli.main(["status", "--spec", str(spec), "--json"])
    told = json.loads(capsys.readouterr().out)["history"]
    assert [(event["about"], event["text"]) for event in told] == [
        ("9 (redis)", "has ended on n1: its node failed"),
        ("n1", "is down*, and does not answer"),
        ("redis", "submitted again as 17"),
    ]
