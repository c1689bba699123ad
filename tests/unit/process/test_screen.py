"""A terminal obeys nothing that a sandbox or a tenant has written."""

import io
import json
import logging
import sys

import pytest

from prorl_mq import cli
from prorl_mq.process import logs
from prorl_mq.process.screen.terminal import Screen, control, screens, visible
from slurm import __main__ as slurm

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31mb\rc\u202ed"
SHOWN = "a\\u001b]0;owned\\u0007\\u001b[2J\\u009b31mb\\u000dc\\u202ed"


def test_control_characters_are_shown_and_text_stays() -> None:
    assert visible(EVIL) == SHOWN
    assert visible("two lines\n\tof text, \u00e9\u4e2d\U0001f600") == "two lines\n\tof text, \u00e9\u4e2d\U0001f600"


def test_json_stays_the_same_json() -> None:
    assert json.loads(visible(json.dumps({"said": EVIL}, ensure_ascii=False))) == {"said": EVIL}


def test_a_command_shows_what_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["submit", f"{EVIL}.jsonl"]) == 2
    assert slurm.main(["status", "--spec", f"{EVIL}.toml"]) == 2
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert "\x9b" not in told
    assert told.count("owned") >= 2


def test_streams_are_as_before_behind_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with screens():
        print(EVIL, file=sys.stderr)
        sys.stdout.writelines([EVIL])
    assert (sys.stdout, sys.stderr) == before
    assert tuple(capsys.readouterr()) == (SHOWN, f"{SHOWN}\n")


def test_our_own_sequences_reach_the_terminal() -> None:
    for stream in (below := io.StringIO(), Screen(below)):
        control(stream, "\r\x1b[K")  # type: ignore[arg-type]
    assert below.getvalue() == "\r\x1b[K" * 2


def test_an_error_text_forges_no_log_line() -> None:
    record = logging.LogRecord("workers", logging.WARNING, "", 1, f"{EVIL}\n2026-01-01 ERROR forged", None, None)
    line = logs.TextFormatter("%(message)s").format(record)
    assert line == f"{SHOWN}\\n2026-01-01 ERROR forged"
    assert json.loads(logs.Json().format(record))["message"] == record.getMessage()
