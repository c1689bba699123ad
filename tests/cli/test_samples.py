"""Recorded rollouts: replayed in a new sandbox, and scored again, from a service and from files."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from prorl_mq.cli import main
from prorl_mq.cli.out_file import row
from prorl_mq.client import Client
from prorl_mq.schema.codec import encode
from prorl_mq.schema.messages import GroupRecord, Outcome, SampleRecord, Verdict
from prorl_mq.schema.trajectory import INHERITED, HandedOver, Trajectory
from tests.cli.conftest import ROOT, Up, command, prorl
from workers.rehearsal.__main__ import made
from workers.rehearsal.policy import tokenizer
from workers.rehearsal.stages import rehearsing, task_of

FAMILY = '''"""A task family: say what stands in a file."""

from pathlib import Path

from prorl_mq.schema.task_schema import Schema
from workers.agent.tools import Arguments, Resumes, Tool, ToolAnswer
from workers.handler import Prepared, Ran, Score
from workers.handlers.asking import Prompts, ask


class Look(Arguments, frozen=True, kw_only=True):
    """Looks."""


async def look(context, arguments):
    return ToolAnswer(text="You see:\\n" + Path("world").read_text() + "and that is all.")


LOOK = Tool(name="look", description="Looks.", arguments=Look, run=look, resumes=Resumes.KEPT)
PROMPTS = Prompts(tools=("think",), with_tools="Look.", without_tools="Look.")


class Looking:
    data_sources = ("looking",)
    schema = Schema(required=("word",), sealed=("word",))
    needs_sandbox = False

    async def init(self, context):
        return Prepared()

    async def run(self, context):
        result = await ask(context, PROMPTS, "What do you see?", more=[LOOK])
        return Ran(trajectory=result.trajectory, export={"answer": result.answer})

    async def eval(self, context):
        if context.export["answer"] == "boom":
            raise OSError("the judge is down")
        return Score(reward=float(context.sealed["word"] in context.export["answer"]))
'''
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


class Done(NamedTuple):
    """The end of a command."""

    returncode: int
    stdout: str
    stderr: str


class Place:
    """A directory with the installed family, its rows, and a file of samples."""

    said: pytest.CaptureFixture[str]

    def __init__(self, path: Path) -> None:
        self.path, self.samples, self.rows, self.model = path, path / "out.jsonl", path / "rows.jsonl", path / "model"

    def fill(self) -> None:
        path = self.path
        (path / "looking.py").write_text(FAMILY)
        installed = path / "looking-0.1.0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: looking\nVersion: 0.1.0\n")
        (installed / "entry_points.txt").write_text("[prorl_mq.handlers]\nlooking = looking:Looking\n")
        (path / "world").write_text("a wall\na door\n")
        self.rows.write_text('{"task_id": "t", "data_source": "looking", "payload": {"word": "door"}}\n')

    def run(self, *words: object) -> Done:
        """The command, in this process; the program that has the families is one of its own."""
        code = main([*map(str, words), "--rows", str(self.rows), "--sandbox", "none"])
        return Done(code, *self.said.readouterr())

    def replay(self, job: str, *more: object) -> Done:
        return self.run("replay", job, self.samples, "--tokenizer", self.model, *more)

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Changes each line of the samples."""
        lines = [json.loads(line) for line in self.samples.read_text().splitlines()]
        for line in lines:
            change(line)
        self.samples.write_text("".join(json.dumps(line) + "\n" for line in lines))


def recorded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples as RUN leaves them: two that saw the door, a wrong one, one whose judge fails, one without a trajectory,
    and one of an older release.
    """
    place.fill()
    monkeypatch.chdir(place.path)
    monkeypatch.syspath_prepend(str(place.path))
    tokenizer().save_pretrained(place.model)
    family = made("looking")

    async def trajectory(answer: str) -> Trajectory:
        async with rehearsing(None, place.model) as rehearsal:
            ran = await rehearsal.run(family, task_of(family, {"word": "door"}, "t"), [CALL, CALL, answer])
        assert ran.trajectory is not None
        return msgspec.structs.replace(ran.trajectory, artefact=encode(HandedOver(export=ran.export)))

    def sample(place: int, reward: float | None, outcome: Outcome = Outcome.COMPLETED) -> SampleRecord:
        return SampleRecord(job_id=f"r:g:{place}", index=place, outcome=outcome, reward=reward)

    told = [asyncio.run(trajectory(answer)) for answer in ("a door", "nothing", "boom")]
    told.append(msgspec.structs.replace(told[0], artefact=b""))
    made_of = [
        (sample(0, 0.0), told[0]), (sample(1, 1.0), told[1]), (sample(2, 1.0), told[2]),
        (sample(3, None, Outcome.INFRA_ERROR), None), (sample(4, 1.0), told[3]), (sample(5, 1.0), told[0]),
    ]  # fmt: skip
    record = GroupRecord(
        run_id="r", batch_id="b", group_id="g", task_id="t", data_source="looking", verdict=Verdict.ACCEPTED,
        samples=[each for each, _ in made_of], n=len(made_of),
    )  # fmt: skip
    lines = [row(record, number, each) for number, (_, each) in enumerate(made_of)]
    place.samples.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place that tests copy."""
    path = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as monkeypatch:
        recorded(Place(path), monkeypatch)
    return path


@pytest.fixture
def place(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Place:
    shutil.copytree(filled, tmp_path / "place")
    found = Place(tmp_path / "place")
    found.said = capfd
    monkeypatch.chdir(found.path)
    monkeypatch.setenv("PYTHONPATH", f"{found.path}{os.pathsep}{ROOT}")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    return found


def test_a_rollout_in_the_same_world_is_the_same(place: Place) -> None:
    done = place.replay("r:g:0")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "r:g:0: the same. 3 turns with 2 calls answer alike in a new sandbox\n"


def test_the_first_turn_of_another_world_is_named_with_both_answers(place: Place) -> None:
    (place.path / "world").write_text("a wall\na window\n")
    done = place.replay("r:g:0")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == [
        "r:g:0: different, after 0 turns with 0 calls that answer alike",
        "turn 0, call 0: look {}",
        "- recorded, + replayed",
        "@@ line 1 recorded, 1 now @@",
        "  You see:",
        "  a wall",
        "- a door",
        "+ a window",
        "  and that is all.",
        "  (ok)",
    ]


def test_a_later_turn_and_what_eval_gets_are_compared_too(place: Place) -> None:
    def change(line: dict[str, Any]) -> None:
        if line["job_id"] == "r:g:1":
            line["trajectory"]["turns"][1]["tool_calls"][0]["result"] = "You see a dragon."
        if line["job_id"] == "r:g:5":
            handed = encode(HandedOver(export={"answer": "another one"}))
            line["trajectory"]["artefact"] = msgspec.to_builtins(handed)

    place.edit(change)
    done = place.replay("r:g:1", "--json")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["turns"], answer["calls"]) == (1, 1)
    assert (answer["difference"]["turn"], answer["difference"]["call"]) == (1, 0)
    assert answer["difference"]["recorded"] == "You see a dragon.\n(ok)"
    done = place.replay("r:g:5")
    assert done.returncode == 1
    assert "turn 2: what is handed to EVAL" in done.stdout
    assert "- another one" in done.stdout
    assert "+ a door" in done.stdout


def test_what_cannot_be_replayed_is_said(place: Place) -> None:
    (place.path / "world").unlink()
    done = place.replay("r:g:0")
    assert done.returncode == 2
    assert done.stdout.startswith("r:g:0 could not be replayed: FileNotFoundError: ")
    for job, told in {
        "r:g:9": "has no sample 'r:g:9'",
        "r:g:3": "the sample 'r:g:3' of {} has no trajectory: it ended as infra_error",
    }.items():
        done = place.replay(job)
        assert done.returncode == 2
        assert told.format(place.samples) in done.stderr
    (place.path / "world").write_text("a wall\na door\n")
    place.edit(lambda line: (line["trajectory"] or {"turns": [{}]})["turns"][0].update(tool_calls=[]))
    done = place.replay("r:g:0")
    assert done.returncode == 2
    assert "turn 0 made 0 calls when it was recorded, and makes 1 now: the tokenizer, " in done.stdout
    place.rows.write_text('{"task_id": "u", "data_source": "looking", "payload": {"word": "door"}}\n')
    done = place.replay("r:g:0")
    assert done.returncode == 2
    assert "has no task 't': give the rows that were submitted" in done.stderr


def test_a_damaged_file_is_refused_by_name_and_not_with_a_traceback(place: Place) -> None:
    def damage(line: dict[str, Any]) -> None:
        if line["trajectory"]:
            line["trajectory"]["turns"][1]["segment"] = 99

    place.edit(damage)
    done = place.replay("r:g:0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the trajectory of r:g:0 is damaged: turn 1" in done.stderr
    place.samples.write_text('{"a": ' + "[" * 20_000 + "]" * 20_000 + "}\n")
    for done in (place.replay("r:g:0"), place.run("regrade", place.samples, "--out", place.path / "new.jsonl")):
        assert done.returncode == 2
        assert "out.jsonl:1 is not a sample written by `prorl-mq submit`" in done.stderr


def test_samples_are_scored_again_and_keep_their_old_rewards_beside_the_new_ones(place: Place) -> None:
    out = place.path / "new.jsonl"
    done = place.run("regrade", place.samples, "--out", out)
    assert done.returncode == 1, done.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["old_reward"], line["reward"], line["not_regraded"] is None) for line in lines] == [
        (0.0, 1.0, True), (1.0, 0.0, True), (1.0, 1.0, False), (None, None, False), (1.0, 1.0, False), (1.0, 1.0, True),
    ]  # fmt: skip
    assert lines[2]["not_regraded"] == "OSError: the judge is down"
    assert lines[4]["not_regraded"].startswith("looking scores what RUN hands over, and the sample has none of it")
    assert [line["trajectory"] for line in lines] == [
        json.loads(line)["trajectory"] for line in place.samples.read_text().splitlines()
    ]
    head, counts, *reasons = done.stdout.splitlines()
    assert head.split() == ["data", "source", "scored", "up", "down", "same", "left", "mean", "before", "mean", "now"]
    assert counts.split() == ["looking", "3", "1", "1", "1", "2", "0.6667", "0.6667"]
    assert reasons[0] == "looking: 1 samples keep their reward: OSError: the judge is down"
    again = place.run("regrade", place.samples, "--out", out)
    assert again.returncode == 2
    assert "already exists" in again.stderr


def test_a_rollout_is_replayed_while_the_service_has_it(
    up: Callable[..., Up], start_backend: Callable[..., str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    """One that has ended, with real sandboxes, one that is under way, and a fork, which is in a file, too."""
    bash = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "echo $((6 * 7)) >>seen; cat seen"}}'
    url = start_backend("--latency-ms", 200, "--text", f"{bash}\n</tool_call>")
    service = up("--backend", url, "--sandbox", "bubblewrap", "--grace", 0)
    payload = {"name": "chain_sum", "seed": 1, "size": 1, "tools": ["execute_bash"]}
    task = {"task_id": "sum", "data_source": "reasoning_gym", "payload": payload}
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(task) + "\n")
    where = ("--rows", rows, "--tokenizer", tokenizer_dir, "--sandbox", "bubblewrap", "--url", service.url)

    def replayed(job: str) -> str:
        done = subprocess.run(command("replay", job, *where), capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def batch(name: str, turns: int) -> dict[str, Any]:
        groups = [{"group_id": name, "task": task, "n": 1}]
        return {"run_id": "r", "batch_id": name, "groups": groups, "sampling": {"max_turns": turns}}

    with Client(service.url) as client:
        client.submit(batch("short", 3))
        [closed] = client.groups("r", "short")
        trajectory = client.trajectory("r:short:0")
        assert msgspec.msgpack.decode(trajectory.artefact)["export"] == {"answer": ""}
        assert client.job("r:short:0").task_id == "sum"
        assert replayed("r:short:0").startswith("r:short:0: the same. 3 turns with 3 calls")
        client.submit(batch("long", 2000))
        while len(client.turns("r:long:0").turns) < 2:
            pass
        assert client.job("r:long:0").task_id == "sum"
        assert replayed("r:long:0").startswith("r:long:0: the same. ")
        client.cancel("job", "r:long:0")
        client.fork("r:short:0", 1, 1, group="branch", batch=batch("short", 3))
        [forked] = client.groups("r", "branch")
        [child] = forked.record.samples
        branch = client.trajectory(child.job_id)
        assert replayed(child.job_id).startswith(f"{child.job_id}: the same. 3 turns with 3 calls")
    assert closed.record.task_id == "sum"
    assert [turn.left_out for turn in branch.turns] == [INHERITED, INHERITED, ""]
    samples, out = tmp_path / "out.jsonl", tmp_path / "regraded.jsonl"
    samples.write_bytes(msgspec.json.encode(row(forked.record, 0, branch)) + b"\n")
    kept = ("--rows", rows, "--sandbox", "bubblewrap")
    done = prorl("replay", child.job_id, samples, *kept, "--tokenizer", tokenizer_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{child.job_id}: the same. 3 turns with 3 calls")
    done = prorl("regrade", samples, *kept, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    [again] = [json.loads(line) for line in out.read_text().splitlines()]
    assert (again["not_regraded"], again["reward"]) == (None, child.reward)
