"""One conversation of the demo, told turn by turn while it runs."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from prorl_mq.client import AsyncClient
from prorl_mq.errors import ServiceError
from prorl_mq.process.screen.terminal import control
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.schema.turns import LoggedTurn

LOOK_S: Final = 0.5
NOT_FOUND: Final = 404
LINES: Final = 6  # of one message
COLUMNS: Final = 160


class Conversation:
    """A job's turns, each told once. `tokenizer` is the directory of the policy's."""

    def __init__(self, job: str, tokenizer: Path) -> None:
        self.job = job
        self._tokenizer = tokenizer / "tokenizer.json"
        self._decoder: Any = None
        self._told = 0

    async def follow(self, client: AsyncClient) -> None:
        """Tells each turn that has ended, from before the job is there until it has ended and is acknowledged. A
        tokenizer that is no single file tells nothing here: `finish` tells all.
        """
        there = False
        while self._tokenizer.is_file():
            try:
                page = await client.turns(self.job, self._told)
            except ServiceError as error:
                if there or error.status != NOT_FOUND:
                    return
                await asyncio.sleep(LOOK_S)
                continue
            there = True
            for turn in page.turns:
                text = await asyncio.to_thread(self._text, turn)
                self._tell(text, [call.result for call in turn.calls])
            if page.complete:
                return
            await asyncio.sleep(LOOK_S)

    def finish(self, whole: Trajectory | None, reward: float | None) -> None:
        """Tells the turns that ended between two looks, and the reward."""
        for turn in whole.turns[self._told :] if whole else ():
            self._tell(turn.text, [call.result for call in turn.tool_calls])
        say(f"  reward     {'none' if reward is None else f'{reward:g}'}")

    def _text(self, turn: LoggedTurn) -> str:
        if self._decoder is None:
            from tokenizers import Tokenizer

            self._decoder = Tokenizer.from_file(str(self._tokenizer))
        return str(self._decoder.decode(list(turn.ids)))

    def _tell(self, text: str, results: Sequence[str]) -> None:
        if not self._told:
            say(f"one of the conversations, {self.job}:")
        self._told += 1
        for role, said in (("assistant", text), *(("tool", result) for result in results)):
            for place, line in enumerate(_cut(said)):
                say(f"  {role if not place else '':<9}  {line}")


def say(text: str) -> None:
    """A line on standard error, above the line of progress."""
    if sys.stderr.isatty():
        control(sys.stderr, "\r\x1b[K")
    print(text, file=sys.stderr, flush=True)


def _cut(text: str) -> list[str]:
    lines = [line if len(line) <= COLUMNS else f"{line[:COLUMNS]}..." for line in text.strip().splitlines()]
    return lines if len(lines) <= LINES else [*lines[: LINES - 1], f"... {len(lines) - LINES + 1} lines more"]
