"""A submission's user sees something at once, and never waits for long without a sign."""

import asyncio
import io

import pytest

from prorl_mq.cli.progress import Progress
from prorl_mq.cli.submit import page_of
from prorl_mq.process.screen import progress_line
from prorl_mq.process.screen.progress_line import bar, duration
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Task


class Terminal(io.StringIO):
    """A stream that says it can rewrite its line."""

    def isatty(self) -> bool:
        return True


@pytest.mark.anyio
async def test_it_is_shown_before_anything_has_ended() -> None:
    stream = io.StringIO()
    async with Progress(2, 8, stream).shown():
        await asyncio.sleep(0)
        assert stream.getvalue() == "0 of 2 groups, 0 of 8 samples, 0 s so far\n"


def test_where_lines_cannot_be_rewritten_an_unchanged_state_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(progress_line, "monotonic", lambda: now)
    stream = io.StringIO()
    progress = Progress(1, 1, stream)
    progress.tell()
    now += progress_line.ALIVE_S - 1
    progress.tell()
    assert stream.getvalue().count("\n") == 1
    now += 1
    progress.tell()
    assert stream.getvalue().splitlines()[1] == "0 of 1 groups, 0 of 1 samples, 30 s so far"


def test_rate_and_time_to_the_end_follow_from_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress_line, "monotonic", lambda: now)
    stream = Terminal()
    progress = Progress(4, 40, stream)
    progress.outcomes["completed"] = 10
    now += 20
    progress.tell()
    assert stream.getvalue().startswith("\r\x1b[K[#####---------------] 0 of 4 groups")
    assert str(progress).endswith("completed 10, 0.5 a second, about 1 min 00 s to go")


def test_a_line_on_a_terminal_is_left_before_an_error_is_said() -> None:
    stream = Terminal()

    async def fail() -> None:
        async with Progress(1, 1, stream).shown():
            await asyncio.sleep(0)
            raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(fail())
    assert stream.getvalue().endswith("\n")


def test_a_bar_is_never_longer_than_its_frame() -> None:
    assert [len(bar(part)) for part in (0.0, 0.5, 1.0, 7.0)] == [22] * 4


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (3725, "1 h 02 min")])
def test_durations_have_the_units_that_matter(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def part_of(batch: str) -> BatchRequest:
    return BatchRequest(
        run_id="my run", batch_id=batch, groups=[GroupRequest(task=Task(task_id="t", data_source="math"))]
    )


def test_the_link_leads_to_the_batch_or_to_the_run_of_several() -> None:
    assert page_of("http://h:1/", [part_of("b")]) == "http://h:1/ui/#/batches/my%20run%3Ab"
    assert page_of("http://h:1", [part_of("b.part1"), part_of("b.part2")]) == "http://h:1/ui/#/runs/my%20run"
    assert page_of("http://h:1", [part_of("b")], "a/b") == "http://h:1/ui/#token=a%2Fb/batches/my%20run%3Ab"
    assert not page_of("unix:///redis.sock", [part_of("b")])
