"""A model with vision as its files have it: a byte tokenizer, Qwen2-VL's template for images, and its processor.

The processor is transformers' own code for Qwen2-VL, put together by hand: its constructor wants torchvision, for
videos, which nothing here shows it.
"""

import io
from pathlib import Path
from typing import Any, cast

from prorl_mq.schema.images.placed import PromptImage
from tests.agent.chat import MARKERS, TOOLED, tokenizer
from workers.agent.pictures import vision
from workers.agent.renderer import Renderer

IMAGE_MARKERS = (*MARKERS, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
SAID = """\
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


def template() -> str:
    """The usual template of these tests, with images."""
    return SAID + TOOLED.replace("message.content", "said(message.content)")


def processor(tokens: Any) -> Any:
    """28 by 28 pixels are one id, up to 64 of them."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor

    made = cast("Any", object.__new__(Qwen2VLProcessor))
    made.image_processor = Qwen2VLImageProcessorPil(size={"shortest_edge": 28 * 28 * 2, "longest_edge": 28 * 28 * 64})
    made.tokenizer, made.chat_template = tokens, None
    made.image_token, made.video_token = "<|image_pad|>", "<|video_pad|>"
    made.image_token_id = tokens.convert_tokens_to_ids("<|image_pad|>")
    made.video_token_id = -1
    return made


def seeing_renderer(directory: Path | None = None, **changes: Any) -> Renderer:
    """A renderer of such a model, or of the one in a directory. Changes are of its processor's attributes."""
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(directory) if directory else tokenizer(template(), IMAGE_MARKERS)
    made = Renderer(tokens, "seeing")
    seen = processor(tokens)
    for name, value in changes.items():
        setattr(seen, name, value)
    model = made._model
    model.template.shows_images = True
    made._vision = vision.proved("seeing", seen, model.template)
    return made


def picture(width: int, height: int, colour: str = "red", kind: str = "PNG", **about: Any) -> PromptImage:
    """An image of one colour."""
    return PromptImage(
        kind=f"image/{kind.lower()}", width=width, height=height, data=drawn(width, height, colour, kind, **about)
    )


def drawn(width: int, height: int, colour: str = "red", kind: str = "PNG", mode: str = "RGB", **about: Any) -> bytes:
    """Its bytes."""
    from PIL import Image

    made = io.BytesIO()
    Image.new(mode, (width, height), colour).save(made, kind, **about)
    return made.getvalue()
