"""Loads a model's own processor as a RUN worker does: a program for an environment with torch and torchvision.

    python -m tests.vision.loading MODEL_DIR

Prints the places of two images in a prompt, as JSON.
"""

import asyncio
import json
import sys
from pathlib import Path

from tests.pictures.seeing import picture
from workers.agent.hermes import Message
from workers.agent.loading import load_renderer
from workers.agent.pictures.messages import attached


async def main() -> None:
    renderer = await load_renderer(Path(sys.argv[1]))
    asked = attached([Message(role="user", content="<image><image>")], [picture(300, 150), picture(60, 60)])
    opening = await asyncio.to_thread(renderer.opening, asked)
    print(json.dumps([[each.start, each.length] for each in opening.pictures]))


if __name__ == "__main__":
    asyncio.run(main())
