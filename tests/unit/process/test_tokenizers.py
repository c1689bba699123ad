"""A tokenizer that is not there is said at the start, by `up` and by the worker that needs it."""

import logging
from pathlib import Path

import pytest

from prorl_mq.cli.arguments import parse
from prorl_mq.cli.up import settings_of
from prorl_mq.errors import ConfigurationError
from workers import __main__ as worker

RUN = ["--stage", "run", "--redis", "redis://127.0.0.1:1"]


@pytest.mark.parametrize("option", ["--tokenizer", "--local-backend"])
def test_up_refuses_a_directory_without_a_tokenizer(option: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} {tmp_path}: it has no tokenizer_config.json; save the"):
        settings_of(parse(["up", option, f"{tmp_path}"]))
    with pytest.raises(ConfigurationError, match="nowhere: there is no such directory"):
        settings_of(parse(["up", option, f"{tmp_path}/nowhere"]))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert settings_of(parse(["up", option, f"{tmp_path}"])).tokenizer == tmp_path


def test_a_run_worker_refuses_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRORL_TOKENIZER", "what was there before")
    settings = worker.parse([*RUN, "--tokenizer", f"{tmp_path}"])
    with pytest.raises(ConfigurationError, match="it has no tokenizer_config"):
        worker.use_tokenizer(settings)


def test_a_run_worker_without_one_says_so_in_its_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not refused: an agent that never talks to the policy needs none."""
    monkeypatch.delenv("PRORL_TOKENIZER", raising=False)
    with caplog.at_level(logging.WARNING):
        worker.use_tokenizer(worker.parse(RUN))
        worker.use_tokenizer(worker.parse(["--stage", "eval", *RUN[2:]]))
    assert caplog.messages == ["tokenizer: none: agents cannot talk to the policy; start again with --tokenizer DIR"]
