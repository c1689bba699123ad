"""The model families: how each ends its turns and writes its calls. What they say is the tokenizer's own template.

`chatml` is Qwen2.5, Qwen3, SmolLM2 and Hermes (reasoning on or off is an option of Qwen3's template); `llama3` is
Llama 3.0 to 3.3; `generic` is every other template, with calls in the Hermes format.
"""

from collections.abc import Sequence

import msgspec

from workers.agent.calls import CallFormat
from workers.agent.hermes_calls import HERMES
from workers.agent.llama_calls import LLAMA


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One family. Tokens that a vocabulary lacks do not count."""

    name: str
    sign: str  # stands in the chat templates of this family and of none before it
    calls: CallFormat
    closing: Sequence[str] = ()  # tokens that close a turn as well as the template's end of turn does
    stops: Sequence[str] = ()  # other tokens that end a completion; the end of turn is inserted behind them


FAMILIES = (
    Family(name="chatml", sign="<|im_start|>", calls=HERMES, stops=("<|endoftext|>",)),
    Family(name="llama3", sign="<|start_header_id|>", calls=LLAMA, closing=("<|eom_id|>",), stops=("<|end_of_text|>",)),
    Family(name="generic", sign="", calls=HERMES),
)


def family_of(template: str, name: str | None = None) -> Family:
    """The named family, or the first whose sign the template has. Raises `LookupError` that lists the known names."""
    if name is None:
        return next(family for family in FAMILIES if family.sign in template)
    known = {family.name: family for family in FAMILIES}
    if name not in known:
        raise LookupError(f"no renderer family is named {name!r}; there are {', '.join(known)}")
    return known[name]
