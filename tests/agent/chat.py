"""Tokenizers of one token a byte with ChatML templates, and a policy that says what it is told to."""

import asyncio
from collections.abc import Sequence
from typing import Any

from workers.agent.renderer import Renderer
from workers.inference.protocol import Completion

BARE = """\
{% for message in messages %}\
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# As Qwen3's: tools in the system message, results from the user, reasoning dropped before the last question.
TOOLED = """\
{%- if tools %}<|im_start|>system\n{{ messages[0].content }}\n{% for tool in tools %}{{ tool | tojson }}\n\
{% endfor %}<|im_end|>\n{%- elif messages[0].role == 'system' %}\
<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last %}{{ '<think>\n' + (message.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}{{ '\n<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def tokenizer(template: str, markers: Sequence[str] = ()) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens(list(CHATML))
    bytewise.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in markers])
    made = PreTrainedTokenizerFast(tokenizer_object=bytewise, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = template
    return made


def bare() -> Renderer:
    return Renderer(tokenizer(BARE), "bare")


def tooled() -> Renderer:
    return Renderer(tokenizer(TOOLED, MARKERS), "tooled")


def encode(renderer: Renderer, text: str) -> list[int]:
    return list(renderer._template.tokenizer.encode(text, add_special_tokens=False))


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
        ids = encode(self.renderer, text.removesuffix("…"))
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


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
