"""The tokenizer of the training example, made of what demonstrators say, with a template of the ChatML family."""

import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from examples.train.demonstrations import demonstration

VOCABULARY = 512
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("execute_bash", "finish")]
SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
]  # fmt: skip
# Of the tools it tells the names only: such a small model learns their arguments from the demonstrations.
TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- for tool in tools %}{{ tool.function.name + '\\n' }}{%- endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def make_tokenizer() -> Any:
    """A byte-level BPE over whole phrases. Each digit is a token of its own, so that numbers can be copied."""
    bpe = Tokenizer(models.BPE())
    digits, in_bytes = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, in_bytes])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_phrases(_with_template(bpe)), trainer)
    return _with_template(bpe)


def _phrases(untrained: Any) -> Iterator[str]:
    """What stands between special tokens."""
    marks = re.compile("|".join(map(re.escape, SPECIALS)))
    for number in range(500):
        said = demonstration(f"tokenizer-{number}")
        yield from filter(None, marks.split(untrained.apply_chat_template(said, tools=TOOLS, tokenize=False)))


def _with_template(bpe: Tokenizer) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )
