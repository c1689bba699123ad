"""Tokenizers of one token a byte with ChatML templates, and a policy that says what it is told to."""

from workers.agent.renderer import Renderer
from workers.rehearsal.policy import BARE, ScriptedPolicy, tokenizer

__all__ = ["BARE", "MARKERS", "TOOLED", "ScriptedPolicy", "bare", "call", "encode", "tokenizer", "tooled"]

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

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def bare() -> Renderer:
    return Renderer(tokenizer(BARE), "bare")


def tooled() -> Renderer:
    return Renderer(tokenizer(TOOLED, MARKERS), "tooled")


def encode(renderer: Renderer, text: str) -> list[int]:
    return renderer.ids(text)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
