"""Conversations put together from ids, beside what the model's own template writes of the same conversation."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.formats.models import Known, renderer
from workers.agent.formats.by_template import TemplateFormat
from workers.agent.formats.deepseek import DeepSeekV3
from workers.agent.hermes import Message, describe
from workers.agent.renderer import Renderer
from workers.agent.tools import TOOLS

TOOL_LIST = list(TOOLS.values())
THOUGHT, ANSWER, MORE = "counting", "I counted them: 42.", "And now?"
SYSTEM, QUESTION = {"role": "system", "content": "You help."}, {"role": "user", "content": "How many?"}
CALLED = (("think", {"thought": "x"}, "abcdefghi", "noted"), ("finish", {"message": "7"}, "abcdefghj", "seven"))
Conversation = list[dict[str, Any]]


# Other ids that end a turn as well: nothing is inserted behind them, and the template writes its own in their place.
CLOSING = frozenset({"<|eom_id|>", "<|eom|>", "<|call|>", "<|return|>"})
# What a template changes in earlier turns: the record keeps what was sampled, and the rest must be equal, id by id.
Rules = Mapping[str, Sequence[tuple[str, str]]]
_XML = r"<think>\n.*?\n?</think>\n*"
ALWAYS: Rules = {
    "Qwen3": [(r"<think>\n\n</think>\n\n", "")],  # a thought without words is shown in the last turn alone
    "Nemotron 3 Nano": [(r"<think>\n</think>", "<think></think>")],  # the prompt has a line break there, the turn none
    "Nemotron 3 Super": [(r"<think>\n</think>", "<think></think>")],
    "Nemotron 3 Ultra": [(r"<think>\n</think>", "<think></think>")],
    "DeepSeek-V3": [(r"<think>\n.*?</think>", ""), (r"<think>\ncounting(?=<)", "")],
}
AT_A_QUESTION: Rules = {
    "Qwen3": [(r"<think>\n.*?(\n</think>\n\n|(?=<\|im_end\|>))", "")],  # a thought that was cut is not closed
    "Qwen3.5": [(_XML, "")],
    "Qwen3.6": [(_XML, "")],
    "Nemotron 3 Nano": [(r"<think>\n.*?\n</think>", "<think></think>")],
    "Nemotron 3 Super": [(r"<think>\n.*?\n</think>", "<think></think>")],
    "Nemotron 3 Ultra": [(r"<think>\n.*?</think>", "<think></think>")],
    "GLM-4.5": [(r"<think>.*?</think>", "<think></think>")],
    "Gemma 4": [(r"<\|channel>thought\n.*?\n?<channel\|>", "")],
    "gpt-oss": [
        (r"<\|channel\|>analysis<\|message\|>[^<]*<\|end\|><\|start\|>assistant", ""),
        (r"analysis<\|message\|>[^<]*<\|end\|>(?=<\|start\|>user)", "final<|message|><|end|>"),
        (r"<\|return\|>", "<|end|>"),
    ],
    "LFM2.5": [(r"<think>.*?</think>", "")],
    "Mistral v3 tekken": [(r"\[AVAILABLE_TOOLS\].*?\[/AVAILABLE_TOOLS\](?=.*\[AVAILABLE_TOOLS\])", "")],
}


def calling(known: Known, count: int, thought: str = "") -> dict[str, Any]:
    """A turn with calls, as the model's template takes it."""
    calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given) if known.format == "deepseek_v3" else given},
        }
        for name, given, call_id, _ in CALLED[:count]
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls, **_thinking(thought)}


def answering(text: str = ANSWER, thought: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": text, **_thinking(thought)}


def results(count: int) -> Conversation:
    return [
        {"role": "tool", "content": said, "tool_call_id": call_id, "name": name}
        for name, _, call_id, said in CALLED[:count]
    ]


def asked() -> Conversation:
    return [{"role": "user", "content": MORE}]


def start(known: Known) -> Conversation:
    """The first messages. Mistral's template drops a system message behind the question."""
    return [QUESTION] if known.format == "mistral" else [SYSTEM, QUESTION]


class Talk:
    """One conversation. Its turns are sampled as the template writes them, and end as the test says."""

    def __init__(self, known: Known, made: Renderer | None = None) -> None:
        self.made = made or renderer(known.name)
        self.known = known
        self.tools = TOOL_LIST if known.has_tools else []
        self.messages = start(known)
        self.ours = self.made.prompt([_message(each) for each in self.messages], self.tools)
        self.strays: list[tuple[int, int]] = []  # other ends: where, and what the template writes in their place

    def say(self, turn: dict[str, Any], following: Conversation, ending: str) -> None:
        """One turn, and the messages that follow it. `ending`: clean, other, cut, or the thought that it is cut in."""
        words, end = self._sampled(turn, following)
        match ending:
            case "clean":
                words = [*words, end]
            case "other":
                self.strays.append((len(self.ours) + len(words), end))
                words = [*words, self._other(end)]
            case "cut":
                pass
            case thought:
                text = self.made.text(words)
                words = self.made.ids(text[: text.rindex(thought) + len(thought)])
        new = [_message(each) for each in following]
        self.ours = [*self.ours, *words, *self.made.after(words, new, self.tools)]
        self.messages = [*self.messages, turn, *following]

    def as_template(self) -> list[int]:
        """Our ids, changed where the template is known to write otherwise."""
        ids = list(self.ours)
        for place, end in reversed(self.strays):
            stray = self.made.text([ids[place]])
            ids[place : place + 1] = [end] if stray in CLOSING else []
        is_question = self.messages[-1]["role"] == "user" and not self.known.keeps
        rules = [*ALWAYS.get(self.known.model, ()), *(AT_A_QUESTION.get(self.known.model, ()) if is_question else ())]
        if not rules:
            return ids
        text = self.made.text(ids)
        at = text.rindex(self.messages[-1]["content"])  # what stands behind it is no turn
        earlier = text[:at]
        for pattern, replacement in rules:
            earlier = re.sub(pattern, replacement, earlier, flags=re.DOTALL)
        return self.made.ids(earlier + text[at:])

    def theirs(self) -> list[int]:
        return self.render(self.messages, generate=True)

    def render(self, conversation: Conversation, *, generate: bool) -> list[int]:
        if self.known.format == "deepseek_v3":  # whose tools stand in the system message
            [first, *rest] = conversation
            said = describe(self.tools, DeepSeekV3.example)
            conversation = [{**first, "content": f"{first['content']}\n\n{said}"}, *rest]
        return self.made._template.render(conversation, self.tools, generate=generate)

    def _sampled(self, turn: dict[str, Any], following: Conversation) -> tuple[list[int], int]:
        """The ids of a turn without its end, and that end."""
        begun = self.render(self.messages, generate=True)
        whole = self.render([*self.messages, turn], generate=False)
        mark = begun[-12:]
        at = next((at for at in range(len(whole) - len(mark), 0, -1) if whole[at : at + len(mark)] == mark), None)
        if at is None:  # the prompt opens a thought that the template shows in another way, or not
            assert isinstance(self.made.family, TemplateFormat)
            closing = self.made.family.think[1]
            rest = self.made.text(whole[_common(begun, whole) :])
            words = self.made.ids(rest if rest.startswith(closing) else f"{THOUGHT}{closing}{rest}")
        else:
            words = whole[at + len(mark) :]
        end = next((at for at, token in enumerate(words) if token in self.made.stop_ids), None)
        if end is not None:
            return words[:end], words[end]
        return words, self.made._template.added["<|observation|>" if following[0]["role"] == "tool" else "<|user|>"]

    def _other(self, end: int) -> int:
        """Another id that ends a completion."""
        return [token for token in self.made.stop_ids if token != end][-1]


def _thinking(thought: str) -> dict[str, str]:
    return {"reasoning_content": thought, "thinking": thought, "tool_plan": thought} if thought else {}


def _message(said: dict[str, Any]) -> Message:
    return Message(role=said["role"], content=said["content"])


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
