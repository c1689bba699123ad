"""A harness that gives up over what the gateway refuses is no work of the policy's."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from prorl_mq.schema.messages import Sampling
from sandbox.protocol import ProcessResult
from tests.agent.chat import ScriptedPolicy, tooled
from tests.external.conftest import HELLO
from workers.agent.template import TemplateError
from workers.external.harness import Harness
from workers.external.running import ExternalResult, HarnessFailed, run_external

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
FINE: dict[str, Any] = {"messages": [HELLO]}
REFUSED = FINE | {"response_format": {"type": "json_object"}}
PICTURE = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}


@pytest.fixture
def door() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


class Box:
    """A sandbox whose harness is these requests, in this process, and an exit code."""

    def __init__(self, door: Path, bodies: Sequence[dict[str, Any]], exit_code: int) -> None:
        self.handle = SimpleNamespace(door=str(door))
        self.door, self.bodies, self.exit_code = door, bodies, exit_code
        self.statuses: list[int] = []

    async def run(self, _: Any, *, stdin: bytes, timeout_s: float) -> ProcessResult:
        headers = {"x-api-key": json.loads(stdin)["fill"]["{key}"]}
        transport = httpx.AsyncHTTPTransport(uds=str(self.door / "socket"))
        async with httpx.AsyncClient(transport=transport, base_url="http://g", timeout=timeout_s) as client:
            for body in self.bodies:
                self.statuses.append((await client.post(CHAT, json=body, headers=headers)).status_code)
        return ProcessResult(exit_code=self.exit_code, stdout=b"", stderr=b"", timed_out=False, seconds=0.1)

    async def interrupt(self) -> None:
        raise AssertionError("nothing was over")


async def rollout(box: Any) -> ExternalResult:
    policy = ScriptedPolicy(tooled(), ["One."] * 4)
    return await run_external(
        harness=Harness(argv=["x"]), task="Do it.", workdir="/", policy=policy, renderer=policy.renderer, sandbox=box,
        sampling=Sampling(), sample="task:0", deadline=asyncio.get_running_loop().time() + 60,
    )  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "why"),
    [(REFUSED, "response_format .* is refused: the policy is not constrained"), (PICTURE, "nothing is fetched")],
)
async def test_it_is_the_infrastructures_and_says_which_request(
    door: Path, body: dict[str, Any], why: str, stream: bool
) -> None:
    box = Box(door, [FINE, body | {"stream": stream}], 1)
    with pytest.raises(HarnessFailed, match=rf"gave up \(exit code 1\) when its request was refused: .*{why}"):
        await rollout(box)
    assert box.statuses == [200, 400]


@pytest.mark.parametrize(("bodies", "exit_code"), [([FINE, REFUSED, FINE], 1), ([FINE, REFUSED], 0), ([FINE, FINE], 1)])
async def test_one_that_goes_on_or_ends_well_is_scored_as_it_is(
    door: Path, bodies: Sequence[dict[str, Any]], exit_code: int
) -> None:
    """The controls: what was answered since, an exit code of 0, and an end without a refusal."""
    found = await rollout(Box(door, bodies, exit_code))
    assert found.stop.reason == ("finish" if exit_code == 0 else "exit code 1")


async def test_messages_that_the_template_refuses_count_too(door: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box, later = Box(door, [FINE, FINE | {"messages": [HELLO, HELLO]}], 2), tooled()
    monkeypatch.setattr(type(later), "prompt", _once(type(later).prompt))
    with pytest.raises(HarnessFailed, match=r"exit code 2\).*no two of the user's"):
        await rollout(box)
    assert box.statuses == [200, 400]


def _once(theirs: Callable[..., Any]) -> Callable[..., Any]:
    asked: list[Any] = []

    def prompt(*given: Any) -> Any:
        asked.append(given)
        if len(asked) > 1:
            raise TemplateError("no two of the user's")
        return theirs(*given)

    return prompt
