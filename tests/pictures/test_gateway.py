"""Third-party agents are given text: what they send as an image is refused by name, in each of the three APIs."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from workers.external import anthropic, chat, responses
from workers.external.history import BadRequest
from workers.external.request import Request, RequestMemory

PNG = "data:image/png;base64,AAAA"
CHAT = {"type": "image_url", "image_url": {"url": PNG}}
BLOCK = {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}
INPUT = {"type": "input_image", "image_url": "http://169.254.169.254/"}
ASKED = {"type": "message", "role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("read", "body", "kind"),
    [
        (chat.read, {"messages": [{"role": "user", "content": [CHAT]}]}, "image_url"),
        (chat.read, {"messages": [{"role": "tool", "tool_call_id": "a", "content": [CHAT]}]}, "image_url"),
        (anthropic.read, {"messages": [{"role": "user", "content": [BLOCK]}], "max_tokens": 5}, "image"),
        (
            anthropic.read,
            {"messages": [{"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [BLOCK]},
            ]}], "max_tokens": 5},
            "image",
        ),
        (responses.read, {"input": [{"type": "message", "role": "user", "content": [INPUT]}]}, "input_image"),
        (
            responses.read,
            {"input": [ASKED, {"type": "function_call_output", "call_id": "a", "output": [INPUT]}]},
            "input_image",
        ),
    ],
    ids=["chat", "chat's result", "messages", "messages' result", "responses", "responses' result"],
)  # fmt: skip
def test_images_of_a_third_party_agent_are_refused_by_name(
    read: Callable[..., Request], body: dict[str, Any], kind: str
) -> None:
    """Nothing is fetched, whatever the address."""
    given = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}
    with pytest.raises(BadRequest, match=f"content of type '{kind}' is not taken"):
        read(given, RequestMemory())
