"""Decodes images as vLLM does: turned upright, and on white where they can be seen through.

So whoever trains on a trajectory sees the pixels that the model saw.
"""

import contextlib
import io
from typing import Any, Final

from prorl_mq.schema.faults import Cause
from prorl_mq.schema.images.placed import PromptImage

_FORMATS: Final = ("PNG", "JPEG", "WEBP")


class ImageUnreadable(Exception):
    """The bytes of an image are no image, though they begin as one."""

    retryable = False
    cause = Cause.ROW


class ImageExtraMissing(Exception):
    """The environment lacks a library that images need."""

    retryable = False
    cause = Cause.NODE


def decoded(image: PromptImage, number: int = 0) -> Any:
    """A Pillow image, RGB. Raises `ImageUnreadable` or `ImageExtraMissing`. Call it in a thread."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImageExtraMissing(
            f"images need Pillow in this environment: install prorl-mq[images] ({error})"
        ) from error
    try:
        opened = _opened(Image, image, number)
        opened.load()
        upright = opened
        with contextlib.suppress(Exception):  # as vLLM does: what it cannot read turns nothing
            upright = ImageOps.exif_transpose(opened)
        return _on_white(Image, upright)
    except ImageUnreadable:
        raise
    except Exception as error:  # decoders of broken data raise what they like
        raise ImageUnreadable(
            f"image {number} ({image.kind}, {len(image.data)} bytes) cannot be decoded: {type(error).__name__}: {error}"
        ) from error


def _opened(library: Any, image: PromptImage, number: int) -> Any:
    """Nothing of it is decoded. Raises `ImageUnreadable` for a size that was not looked at: chunks may say others."""
    opened: Any = library.open(io.BytesIO(image.data), formats=_FORMATS)
    if opened.size != (image.width, image.height):
        size = f"{opened.width} by {opened.height} pixels"
        raise ImageUnreadable(f"image {number} has {size}, and says {image.width} by {image.height} at its start")
    return opened


def _on_white(library: Any, image: Any) -> Any:
    """RGB. What can be seen through is on white."""
    if image.mode == "RGB":
        return image
    if image.mode != "RGBA" and not image.has_transparency_data:
        return image.convert("RGB")
    seen = image.convert("RGBA")
    white = library.new("RGB", seen.size, (255, 255, 255))
    white.paste(seen, mask=seen.split()[3])
    return white
