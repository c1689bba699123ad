"""A trajectory beside one forward pass of its model, and beside the model's own processor."""

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from prorl_mq.schema.images.rows import MARK
from prorl_mq.schema.trajectory import Trajectory


def forward(state_dir: Path, python_path: str, model: Path, trajectory: Trajectory) -> Any:
    """The reply of the program `forward` to the only segment. Of a log-probability it has the number of its token."""
    [segment] = trajectory.segments
    asked = {
        "model": str(model),
        "ids": [*segment.prompt_ids, *segment.response_ids],
        "start": len(segment.prompt_ids),
        "images": [base64.b64encode(trajectory.images[each.image].data).decode() for each in segment.images],
        "temperature": trajectory.temperature,
        "messages": [{"role": each.role, "content": in_parts(each.content)} for each in segment.messages],
        "tools": list(trajectory.tools) or None,
    }
    done = subprocess.run(
        [state_dir / "vllm/bin/python", Path(__file__).with_name("forward.py")],
        input=json.dumps(asked), text=True, capture_output=True, check=True,
        env={**os.environ, "PYTHONPATH": python_path, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    return json.loads(done.stdout)


def in_parts(content: str) -> Any:
    """A text as a user writes it for `apply_chat_template`."""
    if MARK not in content:
        return content
    first, *rest = content.split(MARK)
    parts: list[dict[str, str]] = [{"type": "text", "text": first}] if first else []
    for text in rest:
        parts += [{"type": "image"}, *([{"type": "text", "text": text}] if text else [])]
    return parts


def largest_difference(trajectory: Trajectory, scored: Any) -> float:
    """Of the sampled tokens' log-probabilities, from those of the forward pass."""
    [segment] = trajectory.segments
    sampled = [(at, value) for at, value in enumerate(segment.logprobs) if value is not None]
    assert len(sampled) > 3
    return max(abs(value - scored["logprobs"][at]) for at, value in sampled)
