"""A template that shows the day continues behind midnight: what is kept of it is rendered again."""

import datetime as dt
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from tests.agent.chat import MARKERS, TOOLED, tokenizer
from tests.formats.models import MODELS, renderer
from workers.agent.hermes import Message
from workers.agent.renderer import Renderer
from workers.agent.tools import TOOLS

SHOWS_THE_DAY = TOOLED.replace("<|im_start|>system\n", "<|im_start|>system\n{{ strftime_now('%Y-%m-%d') }} ")
ASKED = [Message(role="system", content="You help."), Message(role="user", content="How many?")]
RESULT = [Message(role="tool", content="42")]


class Clock(dt.datetime):
    """A clock that stands on a day."""

    day = 27

    @classmethod
    def now(cls, tz: Any = None) -> "Clock":
        return cls(2026, 11, cls.day, tzinfo=tz)


def gpt_oss() -> Renderer:
    return renderer(next(known.name for known in MODELS if known.model == "gpt-oss"))


@pytest.mark.parametrize("make", [lambda: Renderer(tokenizer(SHOWS_THE_DAY, MARKERS), "dated"), gpt_oss])
def test_a_turn_behind_midnight_continues_as_one_before(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formats keep what stands before new messages; once the day had changed, each turn of a process failed."""
    made, tools = make(), list(TOOLS.values())
    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    before = made.following([made.end_of_turn], RESULT, tools).ids
    assert "2026-11-27" in made.text(made.prompt(ASKED, tools))
    monkeypatch.setattr(Clock, "day", 28)
    assert "2026-11-28" in made.text(made.prompt(ASKED, tools))
    assert made.following([made.end_of_turn], RESULT, tools).ids == before
