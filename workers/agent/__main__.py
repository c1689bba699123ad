"""Checks the policy's tokenizer and chat template for rollouts: says its model format, or what is wrong with it.

PRORL_TOKENIZER=DIR python -m workers.agent
"""

import asyncio
import os
import sys

from prorl_mq.errors import ConfigurationError
from workers.agent.loading import usable_renderer


async def look() -> int:
    """Exit code 1 for a model that cannot be used."""
    try:
        renderer = await usable_renderer()
    except ConfigurationError as error:
        print(error)
        return 1
    told = f"{os.environ['PRORL_TOKENIZER']}: model format {renderer.family.name}"
    fault = renderer.tools_fault
    print(f"{told}, with tools" if fault is None else f"{told}; tasks with tools are refused: {fault}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(look()))
