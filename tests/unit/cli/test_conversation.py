"""The demo's conversation is told to its end, whatever was seen of it while it ran."""

from pathlib import Path
from typing import cast

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from prorl_mq.cli.demo import conversation
from prorl_mq.cli.demo.conversation import Conversation
from prorl_mq.client import AsyncClient
from prorl_mq.errors import ServiceError
from prorl_mq.schema.trajectory import ToolCall, Trajectory, Turn
from prorl_mq.schema.turns import LoggedTurn, LoggedTurns


def turn(text: str, *results: str) -> Turn:
    calls = [ToolCall(name="execute_bash", arguments="{}", result=each, ok=True, seconds=0.1) for each in results]
    return Turn(
        segment=0, prompt_tokens=1, completion_tokens=0, cached_tokens=None, finish_reason="stop", llm_seconds=0.1,
        text=text, tool_calls=calls,
    )  # fmt: skip


def test_turns_that_nobody_saw_are_told_at_the_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = Trajectory(segments=[], turns=[turn("Let me see.", "4\n2"), turn("It is 42")], stop_reason="answer")
    Conversation("demo:g:0", tmp_path).finish(whole, 1.0)
    assert capsys.readouterr().err.splitlines() == [
        "one of the conversations, demo:g:0:",
        "  assistant  Let me see.",
        "  tool       4",
        "             2",
        "  assistant  It is 42",
        "  reward     1",
    ]


def test_long_messages_are_cut_and_a_lost_sample_has_no_reward(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = Conversation("demo:g:0", tmp_path)
    told.finish(Trajectory(segments=[], turns=[turn("\n".join("abcdefghi"))], stop_reason="answer"), None)
    assert capsys.readouterr().err.splitlines()[-2:] == ["             ... 4 lines more", "  reward     none"]


class Service:
    """Answers for turns in a row."""

    def __init__(self, *answers: LoggedTurns | ServiceError) -> None:
        self.left = list(answers)

    async def turns(self, _: str, after: int) -> LoggedTurns:
        answer = self.left.pop(0)
        if isinstance(answer, ServiceError):
            raise answer
        assert answer.next >= after
        return answer


def page(*turns: LoggedTurn, complete: bool = False) -> LoggedTurns:
    return LoggedTurns(
        job_id="demo:g:0", rollout="1", turns=turns, under_way=None, next=len(turns), complete=complete, note=""
    )


@pytest.mark.anyio
async def test_it_is_told_while_it_runs_though_it_was_not_there_at_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended at the first 404, before the batch was submitted, so that all was told at the end."""
    monkeypatch.setattr(conversation, "LOOK_S", 0.0)
    words = Tokenizer(WordLevel({"yes": 0}))
    words.save(str(tmp_path / "tokenizer.json"))
    said = LoggedTurn(
        number=0, prompt_tokens=1, cached_tokens=None, ids=[0], logprobs=[-0.1], finish_reason="stop", stop_token=None,
        spans=[], llm_seconds=0.1, started_seconds=0.0,
    )  # fmt: skip
    missing = ServiceError("there is no such job", status=404)
    service = Service(missing, page(), page(said), missing)
    await Conversation("demo:g:0", tmp_path).follow(cast("AsyncClient", service))
    assert capsys.readouterr().err.splitlines() == ["one of the conversations, demo:g:0:", "  assistant  yes"]
    assert service.left == []


@pytest.mark.anyio
async def test_a_tokenizer_that_cannot_be_read_here_leaves_all_to_the_end(tmp_path: Path) -> None:
    async with AsyncClient("http://127.0.0.1:1", patience_s=0) as client:
        await Conversation("demo:g:0", tmp_path).follow(client)
