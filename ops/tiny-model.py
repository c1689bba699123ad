# ruff: noqa: INP001  (a program, not a module)
"""Makes a random Qwen3 of 0.2 M parameters with a tokenizer and a chat template: a model for tests.

    python ops/tiny-model.py OUT_DIR [--context TOKENS] [--vision]

With `--vision` it is a random Qwen2-VL with its image processor, which needs torchvision too.
The weights come from a fixed seed. The tokenizer is a byte-level BPE of 1,024 ids, trained on the sources of Python's
standard library, with Qwen3's special tokens; the ChatML template keeps earlier reasoning, so it is append-only.
Needs torch, transformers and tokenizers: run it with the environment that `ops/vllm-cpu.sh` makes.
"""

import argparse
import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

VOCABULARY = 1024
SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
]  # fmt: skip
TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n' }}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if message.reasoning_content %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{%- set f = call.function if call.function else call %}
{{- '\\n<tool_call>\\n{"name": "' + f.name + '", "arguments": ' }}
{{- f.arguments if f.arguments is string else f.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
IN_PARTS = """\
{%- macro said(content) %}
{%- if content is string %}{{- content }}
{%- else %}
{%- for part in content %}
{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- else %}{{- part.text }}{%- endif %}
{%- endfor %}
{%- endif %}
{%- endmacro %}
"""


def make_tokenizer(vision: bool = False) -> Any:
    """A byte-level BPE; its special tokens have the first ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    sources = sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIALS, *(VISION if vision else ())],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train(sources, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",  # noqa: S106
        pad_token="<|endoftext|>",  # noqa: S106
        clean_up_tokenization_spaces=False,
    )
    seeing = TEMPLATE.replace("message.content + '<|im", "said(message.content) + '<|im")
    seeing = seeing.replace("message.content + '\\n</tool", "said(message.content) + '\\n</tool")
    tokenizer.chat_template = IN_PARTS + seeing if vision else TEMPLATE
    return tokenizer


def write_model(out: Path, context: int, eos: int) -> None:
    """Random weights. Embeddings are not tied: tied random ones only copy the last token."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        eos_token_id=eos,
        bos_token_id=None,
        pad_token_id=0,
        initializer_range=0.2,
    )
    model = Qwen3ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=0)
    model.save_pretrained(str(out))


def write_vision_model(out: Path, context: int, tokenizer: Any) -> None:
    """Random weights, and a processor for which 28 by 28 pixels are one id, up to 64 ids an image."""
    import torch
    from transformers import (
        GenerationConfig,
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        Qwen2VLImageProcessor,
        Qwen2VLProcessor,
        Qwen2VLVideoProcessor,
    )

    torch.manual_seed(0)
    eos = tokenizer.eos_token_id
    start, end, image, video = tokenizer.convert_tokens_to_ids(VISION)
    text = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": context,
        "tie_word_embeddings": False, "initializer_range": 0.2, "eos_token_id": eos, "bos_token_id": None,
        "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
    }  # fmt: skip
    eyes = {
        "depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "initializer_range": 0.2,
    }  # fmt: skip
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=eyes,
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
        tie_word_embeddings=False,
    )
    model = Qwen2VLForConditionalGeneration(config).to(torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=0)
    model.save_pretrained(str(out))
    Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(size={"shortest_edge": 28 * 28 * 2, "longest_edge": 28 * 28 * 64}),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=tokenizer.chat_template,
    ).save_pretrained(str(out))


def main() -> None:
    """Builds beside the target and moves it into place."""
    parser = argparse.ArgumentParser(description="A random Qwen3 of 0.2 M parameters, for tests")
    parser.add_argument("out", type=Path)
    parser.add_argument("--context", type=int, default=4096, help="tokens (default 4096)")
    parser.add_argument("--vision", action="store_true", help="a model that takes images")
    options = parser.parse_args()
    out: Path = options.out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        built = Path(scratch) / "model"
        built.mkdir()
        tokenizer = make_tokenizer(options.vision)
        if options.vision:
            write_vision_model(built, options.context, tokenizer)
        else:
            write_model(built, options.context, tokenizer.eos_token_id)
        tokenizer.save_pretrained(str(built))
        if out.exists():
            shutil.rmtree(out)
        built.replace(out)
    print(out)


if __name__ == "__main__":
    main()
