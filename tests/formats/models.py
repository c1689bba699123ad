"""The models whose formats are proved: template file, package, hash, and the added tokens with their `special` flags.

The vocabulary is one token a byte and those added tokens, unless a package carries the real one.
"""

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from workers.agent.renderer import Renderer

ROOT = Path(__file__).parents[2]
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
GLM = (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
    "<|observation|>",
)  # fmt: skip
GLM_PLAIN = (*QWEN, "/nothink", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
GEMMA4 = (
    "<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<|think|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>",
    "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|image|>", "<|audio|>",
)  # fmt: skip
HARMONY = (
    "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>",
    "<|message|>", "<|call|>",
)  # fmt: skip
LFM = (
    "<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|tool_list_start|>",
    "<|tool_list_end|>", "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>",
)  # fmt: skip
LLAMA4 = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>",
    "<|python_start|>", "<|python_end|>", "<|image|>",
)  # fmt: skip
MISTRAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]",
)  # fmt: skip
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
DEEPSEEK_PLAIN = (
    "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>", "<｜tool▁sep｜>", "<think>", "</think>",
)  # fmt: skip
COHERE = (
    "<PAD>", "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>",
    "<|SYSTEM_TOKEN|>", "<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>",
    "<|START_ACTION|>", "<|END_ACTION|>", "<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>",
)  # fmt: skip
PHI = ("<unk>", "<s>", "</s>", "<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>")
GEMMA3 = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>")
LLAMA3 = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
    "<|python_tag|>",
)  # fmt: skip


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """One model's template, as a package carries it."""

    model: str
    format: str
    package: str
    file: str
    sha256: str
    special: Sequence[str]
    plain: Sequence[str] = ()
    bos: str | None = None
    eos: str
    call: str
    thinking: str = "–"
    options: dict[str, Any] = {}

    @property
    def has_tools(self) -> bool:
        return self.call not in {"no tools", "described in words"}

    @property
    def keeps(self) -> bool:
        """True if the template shows old thinking again."""
        return self.thinking == "kept"

    @property
    def name(self) -> str:
        return ", ".join([self.model, *(f"{key}={value}" for key, value in self.options.items())])


TRL, AXOLOTL = "trl 1.16.0", "axolotl 0.19.0"
_XML = "`<function=N><parameter=K>` in `<tool_call>`"
_QWEN35: dict[str, Any] = {
    "format": "qwen_xml",
    "package": TRL,
    "special": CHATML,
    "plain": QWEN,
    "eos": "<|im_end|>",
    "call": _XML,
}
_GEMMA4: dict[str, Any] = {
    "format": "gemma4", "package": TRL, "special": GEMMA4, "bos": "<bos>", "eos": "<eos>",
    "call": '`<|tool_call>call:N{k:<|"|>v<|"|>}<tool_call|>`', "thinking": "dropped at a question",
}  # fmt: skip
_LFM: dict[str, Any] = {
    "format": "lfm2", "package": TRL, "special": LFM, "bos": "<|startoftext|>", "eos": "<|im_end|>",
    "call": "Python list in `<|tool_call_start|>`",
}  # fmt: skip

MODELS: Sequence[Known] = (
    Known(
        model="Qwen2.5", format="chatml", package=TRL, file="qwen2_5.jinja",
        sha256="cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f",
        special=CHATML, plain=QWEN, eos="<|im_end|>", call="JSON in `<tool_call>`",
    ),
    Known(
        model="Qwen3", format="chatml", package=TRL, file="qwen3.jinja",
        sha256="a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8",
        special=CHATML, plain=QWEN, eos="<|im_end|>", call="JSON in `<tool_call>`", thinking="dropped at a question",
    ),
    Known(
        model="Llama 3.2", format="llama3", package=TRL, file="llama3_2.jinja",
        sha256="5816fce10444e03c2e9ee1ef8a4a1ea61ae7e69e438613f3b17b69d0426223a4",
        special=LLAMA3, bos="<|begin_of_text|>", eos="<|eot_id|>", call="one JSON object is the message",
        options={"date_string": "1 Jan 2026"},
    ),
    Known(
        model="Qwen3.5", file="qwen3_5_think.jinja", thinking="dropped at a question",
        sha256="a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715", **_QWEN35,
    ),
    Known(
        model="Qwen3.5", file="qwen3_5_think.jinja", thinking="off", options={"enable_thinking": False},
        sha256="a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715", **_QWEN35,
    ),
    Known(
        model="Qwen3.6", file="qwen3_6.jinja", thinking="dropped at a question",
        sha256="e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259", **_QWEN35,
    ),
    Known(
        model="Qwen3.6", file="qwen3_6.jinja", thinking="kept", options={"preserve_thinking": True},
        sha256="e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259", **_QWEN35,
    ),
    Known(
        model="Qwen3.8", file="qwen3_8.jinja", thinking="kept",
        sha256="c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041", **_QWEN35,
    ),
    Known(
        model="Nemotron 3 Nano", file="nemotron_3_nano.jinja", thinking="dropped at a question",
        sha256="ab7813c3abdd9cb655905a410728b26c7884eca45ddfab8d9f931553485a7862", **_QWEN35,
    ),
    Known(
        model="Nemotron 3 Nano", file="nemotron_3_nano.jinja", thinking="kept",
        options={"truncate_history_thinking": False},
        sha256="ab7813c3abdd9cb655905a410728b26c7884eca45ddfab8d9f931553485a7862", **_QWEN35,
    ),
    Known(
        model="Nemotron 3 Super", file="nemotron_3_super.jinja", thinking="dropped at a question",
        sha256="575fb74f54ed264df9047d0ecce3c98938aae953fb4f50356675706264cbb68a", **_QWEN35,
    ),
    Known(
        model="Nemotron 3 Ultra", file="nemotron_3_ultra.jinja", thinking="dropped at a question",
        sha256="82753bef5cedc4932c1ed509b5c9a12be680fd86d1adb65bc3f7398d11c8eebc", **_QWEN35,
    ),
    Known(
        model="GLM-4.5", format="glm45", package=TRL, file="glm4moe.jinja",
        sha256="44f815868bf02fa458dd2f741a338046f4bf45f398eb6d067766726b9d96cce3",
        special=GLM, plain=GLM_PLAIN, eos="<|endoftext|>", call="`<tool_call>N`, `<arg_key>`, `<arg_value>`",
        thinking="dropped at a question",
    ),
    Known(
        model="Gemma 4", file="gemma4_v5.jinja",
        sha256="0a2c8073c878ab1da004bee933a998606537bbb62016310352c7285c3f01c5b5", **_GEMMA4,
    ),
    Known(
        model="Gemma 4", file="gemma4_v5.jinja", options={"enable_thinking": True},
        sha256="0a2c8073c878ab1da004bee933a998606537bbb62016310352c7285c3f01c5b5", **_GEMMA4,
    ),
    Known(
        model="gpt-oss", format="gpt_oss", package=TRL, file="gptoss.jinja",
        sha256="a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146",
        special=HARMONY, eos="<|return|>", call="` to=functions.N<|channel|>commentary json<|message|>{…}<|call|>`",
        thinking="dropped at a question",
    ),
    Known(
        model="LFM2", file="lfm2_v2.jinja",
        sha256="5504d163d879bfb6fd4135b7fa3d56768b2e69dd718338f7b146750289f46ab0", **_LFM,
    ),
    Known(
        model="LFM2.5", file="lfm2_2_5_v2.jinja", thinking="dropped at a question",
        sha256="c5b67247c9f736f6c40eaa91ae1ef27dc67f5b041eedaadb97a1bea5030fb0ff", **{**_LFM, "plain": QWEN[4:]},
    ),
    Known(
        model="Llama 4", format="llama4", package=AXOLOTL, file="llama4.jinja",
        sha256="f67cd4a71c0ed36b2e0b24678dd7a39a454d35f17f70079f36b417efc08ddad7",
        special=LLAMA4, bos="<|begin_of_text|>", eos="<|eot|>", call="JSON objects behind `<|python_end|>`",
        options={"date_string": "1 Jan 2026"},
    ),
    Known(
        model="Mistral v3 tekken", format="mistral", package=AXOLOTL, file="mistral_v3_tekken.jinja",
        sha256="5d73b7eebd0d38168b7a59fec462efa5aebb0dd3ddb4e9e8ffa5b53c51dff719",
        special=MISTRAL, bos="<s>", eos="</s>", call="`[TOOL_CALLS][{…}]`",
    ),
    Known(
        model="DeepSeek-V3", format="deepseek_v3", package=TRL, file="deepseekv3.jinja",
        sha256="563b1ce7d61d50a9b4c7439a912a1116f095b712df5b5e4d3e1116049874eb64",
        special=DEEPSEEK, plain=DEEPSEEK_PLAIN, bos="<｜begin▁of▁sentence｜>", eos="<｜end▁of▁sentence｜>",
        call="fenced JSON behind `<｜tool▁sep｜>`", thinking="never shown again",
    ),
    Known(
        model="Command-A", format="command_a", package=AXOLOTL, file="command_a_tool_use.jinja",
        sha256="2553c33eeeca87fb4ccc23a759ad50652029bc388c275171329a9878c2cad13d",
        special=COHERE[:7], plain=COHERE[7:], bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>",
        call="numbered JSON list in `<|START_ACTION|>`", thinking="as `tool_plan`",
    ),
    Known(
        model="Phi-3.5", format="phi3", package=TRL, file="phi3_5.jinja",
        sha256="78d976a442bcde2f0be15aafbb8e3050e1104f86732266f68403251b89982a90",
        special=PHI, bos="<s>", eos="<|endoftext|>", call="no tools",
    ),
    Known(
        model="Gemma 3", format="generic", package=TRL, file="gemma3.jinja",
        sha256="7de1c58e208eda46e9c7f86397df37ec49883aeece39fb961e0a6b24088dd3c4",
        special=GEMMA3, bos="<bos>", eos="<eos>", call="described in words",
    ),
    Known(
        model="Cohere 2", format="generic", package=TRL, file="cohere2.jinja",
        sha256="2147c474f41b522b7296f74692b9f31e45f49a31465960576a9d321339c5915a",
        special=COHERE[:7], plain=COHERE[7:], bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>", call="described in words",
    ),
)  # fmt: skip


def template(known: Known) -> str:
    """The template's text, as the package has it. Skips where it was not fetched, and fails in CI."""
    path = Path(os.environ.get("PRORL_STATE_DIR", ROOT / ".state")) / "chat-templates"
    path = path / known.package.split()[0] / known.file
    if not path.exists():
        missing = f"{path} is missing: run `make chat-templates`"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == known.sha256
    return path.read_text()


def tokenizer(known: Known, *, all_special: bool = False) -> Any:
    """One token a byte, and the model's added tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens(list(known.special))
    if all_special:
        bytewise.add_special_tokens(list(known.plain))
    else:
        bytewise.add_tokens([AddedToken(each, special=False, normalized=False) for each in known.plain])
    named = {key: value for key, value in (("bos_token", known.bos), ("eos_token", known.eos)) if value}
    made = PreTrainedTokenizerFast(tokenizer_object=bytewise, clean_up_tokenization_spaces=False, **named)
    made.chat_template = template(known)
    return made


@functools.cache
def renderer(known_name: str, *, all_special: bool = False) -> Renderer:
    """The renderer of the model with this name."""
    known = next(each for each in MODELS if each.name == known_name)
    return Renderer(tokenizer(known, all_special=all_special), known.model, known.options or None)
