"""The ids that new messages add to a conversation, found without rendering anything that a model wrote.

They are the difference of two renderings of a synthetic conversation: what follows its last end of turn when the
messages come to it. A template that rewrites earlier messages has no such difference; that is an error, not a guess.
"""

from collections.abc import Sequence
from typing import Any, Final

from workers.agent.hermes import Message, described, from_user
from workers.agent.template import ANSWER, USER, ChatTemplate, Conversation, TemplateError
from workers.agent.tools import Tool

_SYSTEM = Message(role="system", content="Be brief.")
_MOST: Final = 64  # texts of synthetic conversations that are kept


class Deltas:
    """The differences of one chat template."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.end_of_turn = template.end_of_turn
        self._ends = str(template.tokenizer.convert_ids_to_tokens(self.end_of_turn))
        self._known: dict[Sequence[str], str] = {}

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Conversation:
        """A conversation's first messages as the template takes them."""
        return self.new(messages if self.template.takes_tools else described(messages, tools))

    def of(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The ids that messages add after an end of turn, up to where the model begins to write.

        An environment or a harness may say as a user what a policy or its commands wrote: that is no marker, either.
        """
        added = self.new([Message(role=each.role, content=self.template.defused(each.content)) for each in messages])
        stand_in = tools[:1]  # it matters whether there are tools, not which: all of them are five times the work
        first_error: TemplateError | None = None
        for base in self.bases(messages, stand_in):
            try:
                return self.difference(base, added, stand_in)
            except TemplateError as error:
                first_error = first_error or error
        roles = {message.role for message in messages}
        if "tool" in roles and "user" in roles and self.template.drops_thinking:
            return self._behind_thinking(self.bases(messages, stand_in)[0], added, stand_in)
        raise first_error or TemplateError(f"{self.template.name}: nothing to render")

    def new(self, messages: Sequence[Message]) -> Conversation:
        """Messages as the template takes them; what a tool printed cannot pass for a marker of the template."""
        safe = [
            Message(role=message.role, content=self.template.defused(message.content))
            if message.role == "tool"
            else message
            for message in messages
        ]
        if not self.template.takes_tools:
            told = safe if self.template.takes_results else from_user(safe)
            return [{"role": message.role, "content": message.content} for message in told]
        added: Conversation = []
        for message in safe:
            call_id = {"tool_call_id": _call_id(len(added)), "name": "call"} if message.role == "tool" else {}
            added.append({"role": message.role, "content": message.content, **call_id})
        return added

    def bases(
        self, messages: Sequence[Message], tools: Sequence[Tool], earlier: Sequence[dict[str, Any]] = ()
    ) -> list[Conversation]:
        """Synthetic conversations to add messages to, best first; `earlier` stands before their last question."""
        start = [*self.start([_SYSTEM], tools), *earlier, USER]
        results = sum(message.role == "tool" for message in messages)
        if not results:
            # A template may separate by the role before; one that strips reasoning rewrites the answer instead.
            return [[*start, ANSWER], start]
        if not self.template.takes_tools:
            return [[*start, ANSWER]]
        calls = [call("call", {"x": "1"}, place) for place in range(results)]
        turn = {**ANSWER, "reasoning_content": "Think."}
        # Llama 3's template takes one call a turn, and any number of results.
        return [[*start, {**turn, "tool_calls": calls}], [*start, {**turn, "tool_calls": calls[:1]}]]

    def difference(self, base: Conversation, added: Conversation, tools: Sequence[Tool]) -> list[int]:
        """The ids after the last end of turn of `base` when `added` follows it. Raises `TemplateError`.

        That token separates what is encoded before it from what is behind it, so the text from there on alone is
        encoded. `workers.agent.proof` compares both with the whole.
        """
        full = self.template.written([*base, *added], tools, generate=True)
        key = (str(base), *(tool.name for tool in tools))
        before = self._known.get(key)
        if before is None or not full.startswith(before):  # a template may show the day
            before = self._before(base, tools)
            if not full.startswith(before):
                raise self.rewritten(added[0]["role"], "what came before it")
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[key] = before
        return self.template.encode(full[len(before) - len(self._ends) :])[1:]

    def _before(self, base: Conversation, tools: Sequence[Tool]) -> str:
        """The text of a conversation up to its last end of turn."""
        text, ends, _ = self.template.written(base, tools, generate=False).rpartition(self._ends)
        if not ends:
            raise TemplateError(f"the chat template of {self.template.name} ends no turn: ids cannot continue it")
        return text + ends

    def _behind_thinking(self, base: Conversation, added: Conversation, tools: Sequence[Tool]) -> list[int]:
        """The ids of results and a question behind a turn whose thought the question drops: that turn alone changes."""
        before = self.template.render(base, tools, generate=False)
        full = self.template.render([*base, *added], tools, generate=True)
        asked = self.template.render(base[:-1], tools, generate=False)
        ends = [place for place, token in enumerate(full) if token == self.end_of_turn]
        turns = before.count(self.end_of_turn)
        if (
            full[: len(asked)] != asked
            or len(ends) < turns
            or ANSWER["content"] not in self.template.text(full[len(asked) : ends[turns - 1]])
        ):
            raise self.rewritten(added[0]["role"], "what came before the turn that it answers")
        return full[ends[turns - 1] + 1 :]

    def rewritten(self, role: str, what: str) -> TemplateError:
        return TemplateError(
            f"the chat template of {self.template.name} is not append-only: adding a {role} message changes {what}. "
            "Use a template that keeps earlier messages, reasoning included, as they were"
        )


def call(name: str, arguments: dict[str, str], place: int = 0) -> dict[str, Any]:
    """A tool call as templates take it."""
    return {"id": _call_id(place), "type": "function", "function": {"name": name, "arguments": arguments}}


def _call_id(place: int) -> str:
    return f"call{place:05d}"
