"""The command line answers a slip with the word that was meant."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from prorl_mq.cli import main
from prorl_mq.cli.arguments import COMMANDS, MODULES, module_of, parse

SLIPS = {
    "sumbit tasks.jsonl": "there is no command 'sumbit': did you mean submit?",
    "up --sandox none": "there is no option '--sandox': did you mean --sandbox?",
    "up --slot=4": "there is no option '--slot': did you mean --slots?",
    "up --redis-server embeded": "--redis-server: there is no value 'embeded': did you mean embedded?\n",
    "cancel jub r:g:0": "kind: there is no value 'jub': did you mean job?",
    "pause X": "kind: there is no value 'X': there are job, run (`prorl-mq pause KIND ID [SECONDS] [THEN]`)",
    "job r:g:0 r:g:1": "'r:g:1' is an unexpected argument",
    "up --init many": "'many' is not a whole number from 0 to 1024",
    "up --slots 0": "'0' is no whole number from 1 to 1024",
    "pause job r:g:0 0": "'0' is no whole number of seconds from 1 to 2592000, 30 days",
    "pause run r 2592001": "'2592001' is no whole number of seconds from 1 to 2592000, 30 days",
    "fork r:g:0 --turn 1 a b": "'b' is an unexpected argument",
    "up --port 70000": "'70000' is not a port",
    "submit": "tasks",
}


@pytest.mark.parametrize("line", SLIPS)
def test_a_wrong_word_is_answered_with_one_line_and_code_two(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(line.split())
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert SLIPS[line] in said
    assert said.count("\n") == 1


def test_options_take_several_words_and_may_be_repeated() -> None:
    given = parse(["submit", "t", "--out", "o", "--sampling", "top_p=0.9", "seed=1", "--sampling", "top_k=5"])
    assert given.sampling == ["top_p=0.9", "seed=1", "top_k=5"]


def test_a_pause_may_be_as_long_as_the_service_allows() -> None:
    given = parse(["pause", "run", "r", "7200", "expire"])
    assert (given.seconds, given.then) == (7200, "expire")


def test_an_argument_that_may_be_left_out_is_found_behind_options() -> None:
    given = parse(["fork", "r:g:0", "--turn", "7", "--samples", "4", "NAME"])
    assert (given.command, given.id, given.group, given.turn, given.samples) == ("fork", "r:g:0", "NAME", 7, 4)
    given = parse(["replay", "r:g:0", "--rows", "tasks.jsonl", "out.jsonl"])
    assert (given.id, str(given.rows), str(given.samples)) == ("r:g:0", "tasks.jsonl", "out.jsonl")
    given = parse(["pause", "job", "r:g:0", "--url", "unix:///s", "60", "expire"])
    assert (given.seconds, given.then, given.url) == (60, "expire", "unix:///s")


def test_without_options_up_runs_one_process_of_each_stage() -> None:
    given = parse(["up"])
    assert (given.init, given.run, given.eval, given.port, given.redis) == (1, 1, 1, 8080, None)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_module_that_runs_it(command: str) -> None:
    assert find_spec(f"prorl_mq.cli.{MODULES.get(command, command)}")


@pytest.mark.parametrize(
    ("line", "module"), [("demo", "demo.command"), ("demo --dapo", "demo.dapo"), ("submit t --dapo a=1", "submit")]
)
def test_a_dapo_demo_has_a_module_of_its_own(line: str, module: str) -> None:
    assert module_of(parse(line.split())) == module


def test_a_directory_that_cannot_be_made_is_one_line_and_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["install-tools", "monitoring", "--state-dir", str(tmp_path / "file/state")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"prorl-mq install-tools: {tmp_path}/file/state")
    assert "who may write there" in said
    assert said.count("\n") == 1
