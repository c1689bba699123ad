"""`prorl-mq record`: what a trace has of a run, what it has not, and where it comes from."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from prorl_mq.cli import main
from prorl_mq.cli.kept.record import TraceFile, began_ms, recorded
from prorl_mq.converters.routing_trace import BLOCK, VERSION, Salted, TraceHead, TraceSession, session
from prorl_mq.duties.archiving.turns import Archiving
from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import GroupRecord, Outcome, SampleRecord, Verdict
from prorl_mq.schema.trajectory import Segment, Span, ToolCall, Trajectory, Turn
from tests.archive.groups import acknowledged, close, written
from tests.support.queue import Queue

pytestmark = pytest.mark.anyio
PROMPT = list(range(1000, 1000 + 2 * BLOCK))
FIELDS = {"run": "r", "group": "g", "sample": 0, "began_s": 0.0, "outcome": "completed"}


def rollout(last: int = 7, prompt: Sequence[int] = PROMPT) -> Trajectory:
    """Two turns of 100 sampled tokens with 60 between them; `last`: the id that the second turn has sampled."""
    first, result, second = [5] * 100, [6] * 60, [last] * 100
    segment = Segment(
        prompt_ids=list(prompt), response_ids=[*first, *result, *second],
        loss_mask=[1] * 100 + [0] * 60 + [1] * 100, logprobs=[-0.5] * 100 + [None] * 60 + [-0.5] * 100,
        spans=[Span(start=0, end=100, backend="http://secret-host:1"), Span(start=160, end=260, backend="b")],
    )  # fmt: skip
    call = ToolCall(name="bash", arguments='{"command": "secret words"}', result="secret result", ok=True, seconds=1.5)
    turns = [
        Turn(segment=0, prompt_tokens=len(prompt), completion_tokens=100, cached_tokens=0, finish_reason="stop",
             llm_seconds=2.0, text="secret text", tool_calls=[call], started_seconds=0.5),
        Turn(segment=0, prompt_tokens=len(prompt) + 160, completion_tokens=100, cached_tokens=BLOCK,
             finish_reason="stop", llm_seconds=3.0, text="secret end", started_seconds=4.5),
    ]  # fmt: skip
    return Trajectory(segments=[segment], turns=turns, stop_reason="finish")


def record(name: str, count: int = 2) -> GroupRecord:
    line = "5000\tadmit\tinit\n6000\tclaim\tinit\tT\tw\t\n9500\tclaim\trun\tT2\tw\t\n"
    samples = [SampleRecord(job_id=f"r:{name}:{at}", index=at, outcome=Outcome.COMPLETED) for at in range(count)]
    return GroupRecord(run_id="r", batch_id="b", group_id=name, task_id="secret-task", data_source="d", n=count,
                       verdict=Verdict.ACCEPTED, samples=samples, timelines={"r:g:0": line})  # fmt: skip


def sessions(path: Path) -> list[TraceSession]:
    head, *lines = path.read_bytes().splitlines()
    assert msgspec.json.decode(head, type=TraceHead) == TraceHead(trace=VERSION, block=BLOCK)
    return [msgspec.json.decode(line, type=TraceSession) for line in lines]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_turn_has_its_lengths_and_times_and_no_more() -> None:
    made = session(Salted(b"salt"), rollout(), **FIELDS)  # type: ignore[arg-type]
    assert made is not None
    assert [(turn.prompt, turn.answer, turn.cached) for turn in made.turns] == [(256, 100, 0), (416, 100, BLOCK)]
    assert [(turn.started_s, turn.llm_s, turn.tools_s) for turn in made.turns] == [(0.5, 2.0, 2.0), (4.5, 3.0, 0.0)]
    assert [list(turn.calls_s) for turn in made.turns] == [[1.5], []]
    assert len(made.blocks[0]) == (256 + 260) // BLOCK


def test_equal_beginnings_have_equal_hashes_under_one_salt_and_under_another_none() -> None:
    salted = Salted(b"salt")
    one, other = (salted.blocks(rollout(last).segments[0]) for last in (7, 8))
    assert one[:3] == other[:3]
    assert one[3] != other[3]
    moved = salted.blocks(rollout(prompt=[1, *PROMPT[1:]]).segments[0])
    assert not set(one) & set(moved), "a hash stands for all that lies before it"
    assert not set(one) & set(Salted(b"another").blocks(rollout().segments[0]))


def test_a_file_has_no_text_id_name_or_address(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with path.open("wb") as file:
        recording = TraceFile(file)
        recording.add(record("g"), {"r:g:0": rollout()})
    assert (recording.sessions, recording.without) == (1, 1)
    text = path.read_text()
    assert not re.search(r"secret|bash|http|\br\b|r:g|\bg\b", text)
    [made] = sessions(path)
    assert not {5, 6, 7, *PROMPT} & {hashed for segment in made.blocks for hashed in segment}
    assert made.began_s == 0.0


def test_a_rollout_begins_with_the_last_claim_of_run() -> None:
    assert began_ms("1\tclaim\trun\n7\treap\trun\n9\tclaim\trun\tT\n12\tclaim\teval\n") == 9
    assert began_ms("5\tadmit\tinit\n") is None
    assert began_ms("") is None


async def test_archived_groups_and_those_that_wait_come_into_one_file_each_once(
    queue: Queue, archiving: Archiving, tmp_path: Path
) -> None:
    await acknowledged(queue, archiving, "old", "older")
    await written(queue, archiving)
    await close(queue, "new", told=rollout())
    assert await recorded(queue.store, "acme:r", tmp_path / "one") == f"3 samples are in {tmp_path / 'one'}"
    found = sessions(tmp_path / "one")
    assert [len(each.turns) for each in found] == [2, 2, 2]
    assert len({each.group for each in found}) == 3
    assert len({each.run for each in found}) == 1
    assert found[-1].turns[-1].prompt == 416
    assert all(each.began_s is not None for each in found)
    assert await recorded(queue.store, None, tmp_path / "all") == f"3 samples are in {tmp_path / 'all'}"
    assert len(await queue.results()) == 1, "nothing was acknowledged"
    assert names(tmp_path) == ["all", "archive", "one"]


async def test_a_trajectory_that_cannot_be_read_is_told_and_hides_no_other(queue: Queue, tmp_path: Path) -> None:
    await close(queue, "good", told=rollout())
    await close(queue, "bad")
    for key in await queue.command("KEYS", "*blob*bad*"):
        await queue.command("SET", key, b"damaged")
    said = await recorded(queue.store, "acme:r", tmp_path / "trace")
    assert said.startswith("1 samples are in ")
    assert "1 without a turn of the policy are not; what 1 places hold could not be read (r:bad:0" in said


async def test_a_run_without_samples_leaves_no_file(queue: Queue, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="run 'acme:nobody' has no sample with a trajectory"):
        await recorded(queue.store, "acme:nobody", tmp_path / "trace")
    assert names(tmp_path) == ["archive"]


def test_what_cannot_be_recorded_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "trace"
    for words, told in [
        (["record", "--out", str(out)], "say what to record: one run, or --all"),
        (["record", "r", "--all", "--out", str(out)], "say what to record: one run, or --all"),
    ]:
        assert main(words) == 2
        assert told in capsys.readouterr().err
    out.write_text("mine")
    assert main(["record", "r", "--out", str(out)]) == 2
    assert f"{out} already exists" in capsys.readouterr().err
    assert out.read_text() == "mine"
