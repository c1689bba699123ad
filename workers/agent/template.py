"""A tokenizer's chat template: conversations in, token ids out, and what the template can do."""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from prorl_mq.schema.faults import Cause
from workers.agent.hermes import END_RESPONSE
from workers.agent.pictures.messages import in_parts
from workers.agent.tools import Tool

Conversation = list[dict[str, Any]]
USER = {"role": "user", "content": "Continue."}
ANSWER = {"role": "assistant", "content": "Done."}
_TIDIED: Final = " . ? ! , ' n't 'm 's 've 're"  # what some tokenizers write without the space


class TemplateError(Exception):
    """A model's chat template cannot be used for token-exact rollouts. The message names the template and the rule."""

    retryable = False


class NoTools(TemplateError):
    """A task offers tools to a model that cannot be given any."""

    cause = Cause.ROW


class ChatTemplate:
    """The template of one tokenizer, with the options that its renderings get."""

    def __init__(self, tokenizer: Any, name: str, options: Mapping[str, Any] | None = None) -> None:
        import numpy as np  # which the tokenizer's library has loaded by now

        self.name = name
        self.tokenizer = tokenizer
        self._array = np.asarray
        self._encode, self._decode = self._encode_plainly, self._decode_plainly
        self.source = str(getattr(tokenizer, "chat_template", None) or "")
        if not self.source:
            raise TemplateError(f"{name} has no chat template; put a chat_template.jinja beside its tokenizer.json")
        self.options = dict(options or {})
        self._check_options()
        self.shows_images = False  # until a message with one comes
        self.takes_tools = re.search(r"\btools\b", self.source) is not None
        self.added: Mapping[str, int] = {
            token.content: number for number, token in tokenizer.added_tokens_decoder.items()
        }
        reserved = sorted({*self.added, END_RESPONSE}, key=len, reverse=True)
        self._reserved = re.compile("|".join(map(re.escape, reserved)))
        self._quicken()

    def render(self, conversation: Conversation, tools: Sequence[Tool] = (), *, generate: bool) -> list[int]:
        """The ids of a conversation; `generate` adds the place where the model begins to write."""
        return self.encode(self.written(conversation, tools, generate=generate))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, those of markers included."""
        return self._encode(text)

    def _quicken(self) -> None:
        """Asks the library below the tokenizer for ids and texts alone, where that gives the same: the usual way also
        counts offsets, makes masks and looks at what kind of list it is given, in twice the time.
        """
        below: Any = getattr(self.tokenizer, "backend_tokenizer", None)
        if not hasattr(below, "encode_batch_fast"):
            return

        def encode(text: str) -> list[int]:
            return list(below.encode_batch_fast([text], add_special_tokens=False)[0].ids)

        def decode(ids: Sequence[int], special: bool) -> str:
            return str(below.decode(list(ids), skip_special_tokens=not special))

        text = self.source + _TIDIED
        ids = self._encode_plainly(text)
        if encode(text) == ids:
            self._encode = encode
        if all(decode(ids, special) == self._decode_plainly(ids, special) for special in (True, False)):
            self._decode = decode

    def _encode_plainly(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _decode_plainly(self, ids: Sequence[int], special: bool) -> str:
        """Of a list the tokenizer looks at each id in Python, which takes four times as long as the decoding; of an
        array it does not.
        """
        return str(self.tokenizer.decode(self._array(ids), skip_special_tokens=not special))

    def written(self, conversation: Conversation, tools: Sequence[Tool] = (), *, generate: bool = True) -> str:
        """The text of a conversation."""
        schemas = [tool.schema() for tool in tools] if tools and self.takes_tools else None
        told = [in_parts(message) for message in conversation] if self.shows_images else conversation
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    told, tools=schemas, add_generation_prompt=generate, tokenize=False, **self.options
                )
            )
        except Exception as error:  # a template is a program: it raises what it likes
            raise TemplateError(f"the chat template of {self.name} failed: {type(error).__name__}: {error}") from error

    def text(self, ids: Sequence[int]) -> str:
        """Ids as people read them, special tokens included."""
        return self.decode(ids, special=True)

    def decode(self, ids: Sequence[int], *, special: bool) -> str:
        """The text of ids, with that of special tokens or without."""
        return self._decode(ids, special)

    def quoted(self, ids: Sequence[int]) -> str:
        """Ids as people read them in a line of an error."""
        text = repr(self.text(ids))
        return text if len(text) <= 200 else f"{text[:120]} … {text[-60:]}"

    def ids_of(self, tokens: Sequence[str]) -> frozenset[int]:
        """The ids of those tokens that the vocabulary has as one."""
        return frozenset(self.added[token] for token in tokens if token in self.added)

    def defused(self, text: str) -> str:
        """Puts a zero-width space behind the first character of whatever the tokenizer would read as one marker."""
        return self._reserved.sub(lambda match: f"{match.group()[0]}\u200b{match.group()[1:]}", text)

    def begins(self) -> str:
        """Text between the last message and where the model begins to write."""
        asked, silent = (self.render([USER], generate=generate) for generate in (True, False))
        if asked[: len(silent)] != silent or asked == silent:
            raise TemplateError(
                f"the chat template of {self.name} has no place where the model begins to write: with "
                "add_generation_prompt it must add to the conversation, and only at its end"
            )
        return self.text(asked[len(silent) :])

    @functools.cached_property
    def vocabulary(self) -> int:
        """One more than the largest id of the tokenizer."""
        return 1 + int(max(self.tokenizer.get_vocab().values()))

    @functools.cached_property
    def end_of_turn(self) -> int:
        """The last special id after the text of an assistant's message."""
        return self._find_end_of_turn()

    @functools.cached_property
    def takes_results(self) -> bool:
        """True if the template has a place for messages of role `tool`; some fail on them, some leave them out."""
        return self._shows_results()

    @functools.cached_property
    def takes_late_system(self) -> bool:
        """True if a system message behind others is shown; some templates fail on it, some leave it out."""
        return self._shows([USER, ANSWER, {"role": "system", "content": "wombat"}, USER])

    @functools.cached_property
    def drops_thinking(self) -> bool:
        """True if a question takes thoughts out of the answers before it."""
        thinking = {**ANSWER, "reasoning_content": "wombat", "thinking": "wombat"}
        return self._shows([USER, thinking]) and not self._shows([USER, thinking, USER])

    def _check_options(self) -> None:
        """Jinja ignores what a template does not name: a misspelt option would change nothing."""
        unknown = [option for option in self.options if not re.search(rf"\b{re.escape(option)}\b", self.source)]
        if unknown:
            raise TemplateError(f"the chat template of {self.name} has no option {', '.join(unknown)}: remove it")

    def _find_end_of_turn(self) -> int:
        answered = self.render([USER, ANSWER], generate=False)
        asked = self.render([USER], generate=True)
        tail = answered[len(asked) :] if answered[: len(asked)] == asked else answered
        special = frozenset(self.tokenizer.all_special_ids) | frozenset(
            number for number, token in self.tokenizer.added_tokens_decoder.items() if token.special
        )
        found = [token for token in tail if token in special]
        if not found:
            raise TemplateError(f"the chat template of {self.name} ends the assistant's turn with no special token")
        return found[-1]

    def _shows_results(self) -> bool:
        return self._shows([USER, ANSWER, {"role": "tool", "content": "wombat"}])

    def _shows(self, conversation: Conversation) -> bool:
        """True if the word that stands in for a text is in what the template makes of it."""
        try:
            return "wombat" in self.text(self.render(conversation, generate=False))
        except TemplateError:
            return False
