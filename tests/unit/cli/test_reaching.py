"""A command says that the service does not answer while it still tries."""

import pytest

from prorl_mq.cli import reaching
from prorl_mq.cli.arguments import parse
from prorl_mq.client import patience
from prorl_mq.client.patience import Backoff
from prorl_mq.client.transport import Unreachable
from prorl_mq.process.ports import free_port

ERROR = Unreachable("http://h does not answer")


def test_an_outage_of_a_second_is_told_with_each_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = 100.0, list[float]()
    monkeypatch.setattr(patience, "monotonic", lambda: now)
    backoff = Backoff(lambda _, lasted_s: told.append(lasted_s))
    for now in (100.0, 100.5, 101.0, 104.0):  # noqa: B007  (the clock)
        backoff.step_s(ERROR)
    assert told == [1.0, 4.0]


def test_remarks_come_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    monkeypatch.setattr(reaching, "monotonic", lambda: now)
    remarks = reaching.Remarks()
    for now in (100.0, 105.0, 110.0):
        remarks.say(ERROR, now - 98)
    assert capsys.readouterr().err.splitlines() == [
        "prorl-mq: for 2 s: http://h does not answer; trying again",
        "prorl-mq: for 12 s: http://h does not answer; trying again",
    ]


def test_the_token_of_the_command_line_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRORL_TOKEN", "of-the-variable")
    assert parse(["job", "r:g:0"]).token == "of-the-variable"
    assert parse(["job", "r:g:0", "--token", "given"]).token == "given"


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.process
async def test_a_client_of_a_command_speaks_of_a_service_that_is_down(capsys: pytest.CaptureFixture[str]) -> None:
    async with reaching.reach(parse(["run", "--url", f"http://127.0.0.1:{free_port()}"]), patience_s=5) as client:
        with pytest.raises(Unreachable):
            await client.runs()
    assert "does not answer" in capsys.readouterr().err
