"""Turns messages of the environment into token ids with a model's own chat template.

Only the first prompt is rendered whole. What the environment adds later is the difference of two renderings of a
synthetic conversation in which nothing is sampled: what follows its last end of turn. A template that rewrites
earlier messages has no such difference; that is an error here, not a guess.
"""

import asyncio
import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workers.agent import parser
from workers.agent.hermes import END_RESPONSE, Message, described, from_user
from workers.agent.tools import Tool

_SYSTEM = Message(role="system", content="Be brief.")
_USER = {"role": "user", "content": "Go on."}
_ANSWER = {"role": "assistant", "content": "Done."}
Conversation = list[dict[str, Any]]


class TemplateError(Exception):
    """A model's chat template cannot be used for token-exact rollouts. The message names the template and the rule."""


class Renderer:
    """One model's tokenizer and chat template. Make it with `load_renderer`: that is cached and off the event loop."""

    def __init__(self, tokenizer: Any, name: str, options: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._options = dict(options or {})
        template = getattr(tokenizer, "chat_template", None)
        if not template:
            raise TemplateError(f"{name} has no chat template; put a chat_template.jinja beside its tokenizer.json")
        self.takes_tools = re.search(r"\btools\b", str(template)) is not None
        added = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
        self._special = frozenset(tokenizer.all_special_ids)
        reserved = sorted({*added, END_RESPONSE}, key=len, reverse=True)
        self._reserved = re.compile("|".join(map(re.escape, reserved)))
        has_calls = parser.CALL in added and parser.END_CALL in added
        self._markers = {added[text]: text for text in parser.MARKERS if text in added} if has_calls else {}
        self.end_of_turn = self._find_end_of_turn()
        self._takes_results = self._shows_results()

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """The ids of a conversation's start, up to where the model begins to write."""
        return self._render(self._start(messages, tools), tools, generate=True)

    def delta(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """The ids that new messages add after an end of turn, up to where the model begins to write."""
        results = sum(message.role == "tool" for message in messages)
        added = self._new(messages)
        first_error: TemplateError | None = None
        for base in self._bases(results, tools):
            try:
                return self._difference(base, added, tools)
            except TemplateError as error:
                first_error = first_error or error
        raise first_error or TemplateError(f"{self.name}: nothing to render")

    def parse(self, ids: Sequence[int]) -> parser.Parsed:
        """What a completion says."""
        body = ids[:-1] if ids and ids[-1] == self.end_of_turn else ids
        if self._markers:
            return parser.parse(parser.split_ids(body, self._markers, self._decode))
        return parser.parse(parser.split_text(self._decode(body)))

    def text(self, ids: Sequence[int]) -> str:
        """A completion for people to read."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Conversation:
        told = messages if self.takes_tools else described(messages, tools)
        return [{"role": message.role, "content": message.content} for message in told]

    def _new(self, messages: Sequence[Message]) -> Conversation:
        """New messages as the template takes them; what a tool printed cannot pass for a marker of the template."""
        safe = [
            Message(role=message.role, content=self._defused(message.content)) if message.role == "tool" else message
            for message in messages
        ]
        if not self.takes_tools:
            told = safe if self._takes_results else from_user(safe)
            return [{"role": message.role, "content": message.content} for message in told]
        added: Conversation = []
        for message in safe:
            call_id = {"tool_call_id": _call_id(len(added)), "name": "call"} if message.role == "tool" else {}
            added.append({"role": message.role, "content": message.content, **call_id})
        return added

    def _defused(self, text: str) -> str:
        """Puts a zero-width space behind the first character of whatever the tokenizer would read as one marker."""
        return self._reserved.sub(lambda match: f"{match.group()[0]}\u200b{match.group()[1:]}", text)

    def _bases(self, results: int, tools: Sequence[Tool]) -> list[Conversation]:
        """Synthetic conversations to add to, best first."""
        start = [*self._start([_SYSTEM], tools), _USER]
        if not results:
            # A template may separate by the role before; one that strips reasoning rewrites the answer instead.
            return [[*start, _ANSWER], start]
        if not self.takes_tools:
            return [[*start, _ANSWER]]
        calls = [
            {"id": _call_id(place), "type": "function", "function": {"name": "call", "arguments": {"x": "1"}}}
            for place in range(results)
        ]
        return [[*start, {**_ANSWER, "reasoning_content": "Think.", "tool_calls": calls}]]

    def _difference(self, base: Conversation, added: Conversation, tools: Sequence[Tool]) -> list[int]:
        before = self._render(base, tools, generate=False)
        full = self._render([*base, *added], tools, generate=True)
        if self.end_of_turn not in before:
            raise TemplateError(f"the chat template of {self.name} ends no turn; it cannot be continued by ids")
        cut = len(before) - before[::-1].index(self.end_of_turn)
        if full[:cut] != before[:cut]:
            raise TemplateError(
                f"the chat template of {self.name} is not append-only: adding a {added[0]['role']} message changes "
                "what came before it. Use a template that keeps earlier messages, reasoning included, as they were"
            )
        return full[cut:]

    def _render(self, conversation: Conversation, tools: Sequence[Tool], *, generate: bool) -> list[int]:
        schemas = [tool.schema() for tool in tools] if tools and self.takes_tools else None
        try:
            ids = self._tokenizer.apply_chat_template(
                conversation,
                tools=schemas,
                add_generation_prompt=generate,
                tokenize=True,
                return_dict=False,
                **self._options,
            )
        except Exception as error:  # a template is a program: it raises what it likes
            raise TemplateError(f"the chat template of {self.name} failed: {type(error).__name__}: {error}") from error
        return list(ids)

    def _find_end_of_turn(self) -> int:
        """The first special id after the text of an assistant's message."""
        answered = self._render([_USER, _ANSWER], (), generate=False)
        asked = self._render([_USER], (), generate=True)
        tail = answered[len(asked) :] if answered[: len(asked)] == asked else answered
        special = [token for token in tail if token in self._special]
        if not special:
            raise TemplateError(f"the chat template of {self.name} ends the assistant's turn with no special token")
        return special[-1]

    def _shows_results(self) -> bool:
        """Whether the template has a place for messages of role `tool`; some fail on them, some leave them out."""
        result = {"role": "tool", "content": "wombat"}
        try:
            return "wombat" in self.text(self._render([_USER, _ANSWER, result], (), generate=False))
        except TemplateError:
            return False


def _call_id(place: int) -> str:
    return f"call{place:05d}"


_cache: dict[tuple[str, str], Renderer] = {}
_loading = threading.Lock()


def _load(directory: Path, options: Mapping[str, Any] | None) -> Renderer:
    key = (str(directory.resolve()), repr(sorted((options or {}).items())))
    with _loading:
        if key not in _cache:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
            renderer = Renderer(tokenizer, directory.name, options)
            renderer.prompt([_SYSTEM, Message(role="user", content="Go on.")])  # compiles the template
            _cache[key] = renderer
        return _cache[key]


async def load_renderer(directory: Path, options: Mapping[str, Any] | None = None) -> Renderer:
    """The renderer of the model in a local directory: loaded once per process, in a thread."""
    return await asyncio.to_thread(_load, directory, options)


async def policy_renderer() -> Renderer:
    """The renderer of the policy that this worker drives: its tokenizer's directory is in PRORL_TOKENIZER."""
    directory = os.environ.get("PRORL_TOKENIZER")
    if not directory:
        raise TemplateError(
            "no tokenizer is configured: start the RUN worker with --tokenizer DIR, the directory that holds the "
            "policy's tokenizer.json and chat template (or set PRORL_TOKENIZER)"
        )
    return await load_renderer(Path(directory))
