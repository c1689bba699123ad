"""Checks tokenizers and chat templates for rollouts: says each one's model format, or what is wrong with it.

PRORL_TOKENIZER=DIR PRORL_MODELS=FILE python -m workers.agent
"""

import asyncio
import os
import sys

from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.images.pixels import ImageExtraMissing
from workers.agent.loading import usable_models, usable_renderer
from workers.agent.renderer import Renderer
from workers.agent.template import TemplateError


async def look() -> int:
    """Exit code 1 for a model that cannot be used."""
    try:
        found = [f"pool {pool}: {_told(renderer)}" async for pool, renderer in usable_models()]
        if directory := os.environ.get("PRORL_TOKENIZER"):
            found.append(f"{directory}: {_told(await usable_renderer())}")
    except ConfigurationError as error:
        print(error)
        return 1
    print("; ".join(found) or "no model is configured")
    return 0


def _told(renderer: Renderer) -> str:
    told, fault = f"model format {renderer.family.name}", renderer.tools_fault
    if renderer.sees:
        told += _seen(renderer)
    return f"{told}, with tools" if fault is None else f"{told}; tasks with tools are refused: {fault}"


def _seen(renderer: Renderer) -> str:
    """Loads the image processor, which proves it; that takes seconds."""
    try:
        renderer.vision()
    except (ImageExtraMissing, TemplateError) as error:
        return f"; tasks with images fail: {error}"
    return ", with images"


if __name__ == "__main__":
    sys.exit(asyncio.run(look()))
