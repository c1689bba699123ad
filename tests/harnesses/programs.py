"""The harnesses under test: in which words each is told to act, and what each asks beside its task."""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.agent.chat import call

FASTEST: Final = ("codex", "claude-code")  # these run in CI, `make test-harnesses` runs all
SUBMIT: Final = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@dataclass(frozen=True, kw_only=True)
class Program:
    """One harness. `compaction` is in its order to sum up; `room` the context, in bytes, that two outputs fill."""

    bash: Callable[[str], str]
    spawn: Callable[[str], str] | None = None
    compaction: str = ""
    room: int = 0
    output: int = 0


def _bash(tool: str, field: str = "command") -> Callable[[str], str]:
    return lambda command: call(tool, json.dumps({field: command, "description": "Runs it"}))


def _agent(tool: str, **more: object) -> Callable[[str], str]:
    return lambda task: call(tool, json.dumps({"description": "A part", "prompt": task, **more}))


PROGRAMS: Final[Mapping[str, Program]] = {
    "codex": Program(
        bash=_bash("exec_command", "cmd"),
        spawn=lambda task: call("spawn_agent", json.dumps({"message": task})),
        compaction="CONTEXT CHECKPOINT COMPACTION",
        room=65_000,
        output=9_000,
    ),
    "claude-code": Program(
        bash=_bash("Bash"),
        spawn=_agent("Agent", subagent_type="general-purpose", run_in_background=False),
        compaction="create a detailed summary",
        room=130_000,
        output=12_000,
    ),
    "opencode": Program(
        bash=_bash("bash"),
        spawn=_agent("task", subagent_type="general"),
        compaction="Do not mention the summary process",
        room=50_000,
        output=6_000,
    ),
    "mini-swe-agent": Program(bash=_bash("bash")),
}
CHOSEN: Final = tuple(os.environ.get("PRORL_HARNESSES", " ".join(FASTEST)).split())


def done(name: str) -> str:
    """The end of the work. mini-swe-agent knows it by a command."""
    return PROGRAMS[name].bash(SUBMIT) if name == "mini-swe-agent" else "Done."


def is_title(prompt: str) -> bool:
    """OpenCode asks for one beside the task."""
    return "Generate a title for this conversation" in prompt


def waits(prompt: str) -> str:
    """Codex's main agent continues at once, and waits for those that it has started."""
    targets = re.findall(r'"agent_id":"([^"]+)"', prompt)
    return call("wait_agent", json.dumps({"targets": targets, "timeout_ms": 60_000}))
