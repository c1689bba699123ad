"""Policies that say what they are told to: given texts, over a vocabulary of one token a byte with a ChatML template,
or the tokens of turns that were recorded.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from prorl_mq.schema.turns import LoggedTurn
from workers.agent.renderer import Renderer
from workers.inference.protocol import Completion

BARE = """\
{% for message in messages %}\
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tokenizer(template: str = BARE, markers: Sequence[str] = ()) -> Any:
    """One that needs no file. `markers` become tokens of their own."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens(list(CHATML))
    bytewise.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in markers])
    pad, _, end = CHATML
    made = PreTrainedTokenizerFast(tokenizer_object=bytewise, eos_token=end, pad_token=pad)
    made.chat_template = template
    return made


class ScriptedPolicy:
    """Answers with given texts, in order. A text that ends in "…" is cut there, as by a length limit."""

    def __init__(self, renderer: Renderer, texts: Sequence[str]) -> None:
        self.renderer, self.texts = renderer, list(texts)
        self.prompts: list[list[int]] = []
        self.seeds: list[int | None] = []
        self.cut = "length"  # how a cut turn ends

    async def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, seed: int | None = None, **_: Any
    ) -> Completion:
        await asyncio.sleep(0)
        self.prompts.append(list(prompt_ids))
        self.seeds.append(seed)
        text = self.texts.pop(0)
        ids = self.renderer.ids(text.removesuffix("…"))
        if not text.endswith("…"):
            ids.append(self.renderer.end_of_turn)
        cut = text.endswith("…") or len(ids) > max_tokens
        ids = ids[:max_tokens]
        return Completion(
            ids=ids,
            logprobs=[-0.5] * len(ids),
            finish_reason=self.cut if cut else "stop",
            backend="scripted",
            version=("7", "7"),
            prompt_tokens=len(prompt_ids),
        )


class RecordedPolicy:
    """Says the tokens of recorded turns, in order."""

    def __init__(self, turns: Sequence[LoggedTurn]) -> None:
        self._left = list(turns)

    async def generate(self, prompt_ids: Sequence[int], *, max_tokens: int, **_: Any) -> Completion:  # noqa: ARG002
        """Raises `LookupError` where more turns are asked for than there were."""
        if not self._left:
            raise LookupError("the rollout asks for more turns than were recorded")
        turn = self._left.pop(0)
        return Completion(
            ids=turn.ids,
            logprobs=turn.logprobs,
            finish_reason=turn.finish_reason,
            stop_token=turn.stop_token,
            backend="recorded",
        )
