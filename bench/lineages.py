"""Cost and size of the gateway's lineage forest.

    python -m bench.lineages

Prints the CPU of a continuing call (its body read, placed and answered, without tokenisation, the policy and HTTP), and
the tokens of an agent that alternates with a sub-agent, beside those of one open segment.
"""

import asyncio
import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

from prorl_mq.schema.codec import decode_any, encode_trajectory, expand
from prorl_mq.schema.messages import Sampling
from workers.agent.hermes import Message
from workers.agent.parser import Parsed
from workers.agent.renderer import Renderer
from workers.agent.result import LoopEnd
from workers.agent.tools import Tool
from workers.external import anthropic, chat, responses
from workers.external.history import Said
from workers.external.parameters import ROUTES
from workers.external.recording import Recording
from workers.external.request import RequestMemory, parameters
from workers.inference.protocol import Completion
from workers.rehearsal.policy import BARE, tokenizer

WARM, ROUNDS = 5, 40
SAMPLING: Final = Sampling(max_turns=10_000, max_tokens=1 << 24, max_context_tokens=1 << 24)
ROUTE_OF: Final = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


class Clocked(Renderer):
    """A renderer whose time is not the gateway's."""

    seconds = 0.0

    def after(self, tail: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        return list(self._timed(super().after, tail, messages, tools))

    def parse(self, ids: Sequence[int], tools: Sequence[Tool] = ()) -> Parsed:
        found: Parsed = self._timed(super().parse, ids, tools)
        return found

    def text(self, ids: Sequence[int]) -> str:
        return str(self._timed(super().text, ids))

    def said(self, ids: Sequence[int]) -> str:
        return str(self._timed(super().said, ids))

    def _timed(self, call: Any, *given: Any) -> Any:
        began = time.process_time()
        try:
            return call(*given)
        finally:
            self.seconds += time.process_time() - began


class Says:
    """A policy that answers at once, and keeps what was sent as it was."""

    def __init__(self, renderer: Renderer) -> None:
        self.ids = [*renderer.ids("I look."), renderer.end_of_turn]
        self.tokens: list[int] = []

    async def generate(self, prompt_ids: Any, **_: Any) -> Completion:
        self.tokens.append(len(prompt_ids) + len(self.ids))
        return Completion(ids=self.ids, logprobs=[-0.5] * len(self.ids), finish_reason="stop", backend="b")


def _first(kb: int) -> list[dict[str, Any]]:
    """Messages of two kilobytes each, as an agent's history has them."""
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": f"{at} " + "word " * 400} for at in range(kb // 2 - 1)]


def _added(name: str, reply: Any, at: int) -> list[dict[str, Any]]:
    more = {"role": "user", "content": f"Result {at} " + "line " * 100}
    if name == "responses":
        return [{"type": "message", "id": reply.id("msg"), "role": "assistant", "content": reply.said.text}, more]
    return [{"role": "assistant", "content": reply.said.text}, more]


async def _calls(name: str, kb: int, renderer: Clocked) -> list[float]:
    """Milliseconds of CPU of each continuing call."""
    api = {"chat": chat, "messages": anthropic, "responses": responses}[name]
    recording, memory = Recording(Says(renderer), renderer, SAMPLING, "s"), RequestMemory()
    history, field = _first(kb), "input" if name == "responses" else "messages"
    if len(history) % 2 == 0:
        history = history[:-1]
    found = []
    for at in range(WARM + ROUNDS):
        body = json.dumps({"model": "policy", field: history}).encode()
        renderer.seconds, began = 0.0, time.process_time()
        asked = api.read(parameters(body, ROUTES[ROUTE_OF[name]]), memory)  # type: ignore[attr-defined]
        reply = await recording.ask(asked.history, asked.tools)
        json.dumps(api.written(reply, asked, 0))  # type: ignore[attr-defined]
        found.append((time.process_time() - began - renderer.seconds) * 1e3)
        history += _added(name, reply, at)
    return found[WARM:]


async def _alternating(turns: int, renderer: Renderer) -> tuple[int, int, int]:
    """Tokens of one open segment, of all rows, and those that are stored."""
    policy = Says(renderer)
    recording = Recording(policy, renderer, SAMPLING, "s")
    talks = [[Said(role="system", text="Be brief."), Said(role="user", text=who * 1000)] for who in "MS"]
    for turn in range(turns):
        for place, talk in enumerate(talks):
            reply = await recording.ask(talk, ())
            talk += [reply.said, Said(role="user", text=f"{place} {turn} " + "r" * 600)]
    trajectory = await recording.trajectory(LoopEnd(reason="finish"))
    if trajectory is None:
        raise AssertionError("nothing was asked")
    rows = sum(len(each.prompt_ids) + len(each.response_ids) for each in trajectory.segments)
    form = decode_any(expand(encode_trajectory(trajectory)))
    return sum(policy.tokens), rows, sum(len(each["ids"]) for each in form["tree"])


async def main() -> None:
    renderer = Clocked(tokenizer(BARE), "bare")
    print(f"load {os.getloadavg()[0]:.1f}")
    print("| API | body, kB | CPU of a continuing call, ms: median | 10 % | 90 % |\n|---|---|---|---|---|")
    for name in ROUTE_OF:
        for kb in (50, 100, 200):
            found = await _calls(name, kb, renderer)
            low, *_, high = statistics.quantiles(found, n=10)
            print(f"| {name} | {kb} | {statistics.median(found):.2f} | {low:.2f} | {high:.2f} |")
    print("| turns of each agent | one open segment, tokens | rows | stored | times |\n|---|---|---|---|---|")
    for turns in (5, 20, 40):
        before, rows, stored = await _alternating(turns, renderer)
        print(f"| {turns} | {before:,} | {rows:,} | {stored:,} | {before / rows:.1f} |")


if __name__ == "__main__":
    asyncio.run(main())
