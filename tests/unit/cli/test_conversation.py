"""The demo's conversation is told to its end, whatever was seen of it while it ran."""

from pathlib import Path

import pytest

from prorl_mq.cli.demo.conversation import Conversation
from prorl_mq.client import AsyncClient
from prorl_mq.schema.trajectory import ToolCall, Trajectory, Turn


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


@pytest.mark.anyio
async def test_a_tokenizer_that_cannot_be_read_here_leaves_all_to_the_end(tmp_path: Path) -> None:
    async with AsyncClient("http://127.0.0.1:1", patience_s=0) as client:
        await Conversation("demo:g:0", tmp_path).follow(client)
