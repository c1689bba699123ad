"""Conversations that the tiny model is taught, so that it calls a tool and says what it has seen.

A random model calls no tool. What is taught is the ids that our own renderer makes of each conversation.
"""

import base64
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from prorl_mq.schema.images.placed import PromptImage
from prorl_mq.schema.images.rows import MARK
from tests.pictures.seeing import picture, seeing_renderer
from workers.agent.hermes import Message
from workers.agent.pictures.messages import Pictured, attached
from workers.agent.renderer import Renderer
from workers.agent.tools import select
from workers.external.history import foreign

QUESTION: Final = "<image>Count."
SYSTEM: Final = "You look."
TOOLS: Final = ["execute_ipython_cell", "view_image"]
SHOWN: Final = picture(56, 56, "white")  # by a tool, from a file that the policy writes


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """A task, and what its policy says to it, turn by turn, where its calls are answered so."""

    colour: str
    answer: str
    said: Sequence[str]
    results: Sequence[str]
    tools: Sequence[Any] = ()  # none: those of `TOOLS`

    @property
    def image(self) -> PromptImage:
        return picture(84, 56, self.colour)

    @property
    def images(self) -> list[PromptImage]:
        """All that its model is shown, in their order."""
        return [self.image, *(SHOWN for each in self.results if each == MARK)]


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def cell(code: str) -> str:
    return call(TOOLS[0], code=code)


WRITES: Final = (
    f'import base64\nopen("/tmp/a.png", "wb").write(base64.b64decode("{base64.b64encode(SHOWN.data).decode()}"))'
)
LESSONS: Final = (
    Lesson(colour="red", answer="7", said=[cell("3 + 4"), "It is \\boxed{7}"], results=["7"]),
    Lesson(colour="blue", answer="9", said=[cell("4 + 5"), "It is \\boxed{9}"], results=["9"]),
    Lesson(
        colour="green",
        answer="5",
        said=[cell(WRITES), call("view_image", path="/tmp/a.png"), "It is \\boxed{5}"],
        results=[str(len(SHOWN.data)), MARK],
    ),
)

BASH: Final = {  # as mini-swe-agent describes it
    "name": "bash",
    "description": "Execute a bash command",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The bash command to execute"}},
        "required": ["command"],
    },
}


def _noted(colour: str) -> Lesson:
    """A third-party agent asks, and what the policy has seen is what its command writes."""
    command = f"echo {colour} > /workspace/seen; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    return Lesson(colour=colour, answer=colour, said=[call("bash", command=command)], results=[], tools=[foreign(BASH)])


HARNESS_LESSONS: Final = (_noted("red"), _noted("blue"))


def ids_of(renderer: Renderer, lesson: Lesson) -> dict[str, Any]:
    """The lesson as ids, with a mask of those that the policy is to sample."""
    tools = lesson.tools or select(TOOLS)
    asked = attached([Message(role="system", content=SYSTEM), Message(role="user", content=QUESTION)], [lesson.image])
    ids = list(renderer.opening(asked, tools).ids)
    mask = [0] * len(ids)
    for place, said in enumerate(lesson.said):
        sampled = [*renderer.ids(said), renderer.end_of_turn]
        ids += sampled
        mask += [1] * len(sampled)
        if place < len(lesson.results):
            text = lesson.results[place]
            result = Pictured(role="tool", content=text, images=[SHOWN] if text == MARK else [])
            added = renderer.following(sampled, [result], tools).ids
            ids += added
            mask += [0] * len(added)
    return {"ids": ids, "mask": mask, "images": [base64.b64encode(each.data).decode() for each in lesson.images]}


def teach(model: Path, python: Path, python_path: str) -> None:
    """Trains the model in its directory, until it samples each lesson's turns with 97 % an id or more."""
    renderer = seeing_renderer(model)
    asked = {
        "model": str(model), "least": 0.97, "steps": 800,
        "lessons": [ids_of(renderer, each) for each in (*LESSONS, *HARNESS_LESSONS)],
    }  # fmt: skip
    done = subprocess.run(
        [python, Path(__file__).with_name("lessons.py")],
        input=json.dumps(asked), text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": python_path, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
