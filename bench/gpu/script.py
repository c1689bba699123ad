"""What the model is made to say: a tool call a turn, then an answer, since random weights cannot call tools.

The turn is read off the prompt, so that a server with the same script gives the same answer to the same ids.
"""

import json
import math
import random
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tokenizers import Tokenizer

COMMAND: Final = "seq 101 140"  # 40 lines, the same in every sandbox
ANSWER: Final = "The sum is 4820."
SIGMA: Final = 0.5  # of the logarithm of a turn's length
SPREAD: Final = 3  # a turn has at most so many times the mean
WORDS: Final = (
    "first", "then", "look", "at", "the", "numbers", "that", "were", "printed", "and", "add", "each", "line", "to",
    "what", "is", "known", "so", "far",
)  # fmt: skip


class Scripted(NamedTuple):
    """One answer. `last`: the conversation ends with it."""

    ids: list[int]
    last: bool


class Script:
    """`turns` completions a conversation, of `tokens` ids on average, thoughts and end of turn included."""

    def __init__(self, directory: Path, *, turns: int, tokens: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._turns, self._tokens = turns, tokens
        self._result, self._end = self._id("<tool_response>"), self._id("<|im_end|>")
        self._begin = [self._id("<|im_start|>"), *self._encoded("assistant\n")]
        call = json.dumps({"name": "execute_bash", "arguments": {"command": COMMAND}})
        self._call = self._encoded(f"\n<tool_call>\n{call}\n</tool_call>")
        self._answer = self._encoded(f"\n{ANSWER}")

    def reply(self, prompt: Sequence[int]) -> Scripted | None:
        """The answer to a prompt; None where it is none of a conversation (a probe's)."""
        if list(prompt[-len(self._begin) :]) != self._begin:
            return None
        turn = sum(token == self._result for token in prompt)
        last = turn >= self._turns - 1
        tail = [*(self._answer if last else self._call), self._end]
        dice = random.Random(zlib.crc32(array("q", prompt).tobytes()))
        drawn = dice.lognormvariate(math.log(self._tokens) - SIGMA * SIGMA / 2, SIGMA)
        room = min(round(drawn), SPREAD * self._tokens) - len(tail)
        thoughts = self._encoded(" ".join(dice.choices(WORDS, k=max(1, room))))
        return Scripted(thoughts[: max(1, room)] + tail, last)

    def _encoded(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _id(self, text: str) -> int:
        found = self._tokenizer.token_to_id(text)
        if found is None:
            raise ValueError(f"the tokenizer has no token {text}: it must be one with ChatML and tool responses")
        return int(found)
