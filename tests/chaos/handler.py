"""A task family for the chaos tests: stages of given length, failures on order, tokens from a backend."""

import asyncio
import base64
import contextlib
import random
import time
import zlib
from typing import Any, Literal

from prorl_mq.schema.trajectory import Segment, Span, Trajectory, Turn
from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score
from workers.handlers.asking import Prompts, ask

STEPS = "/tmp/steps"


def seed_of(job_id: str) -> int:
    """A number of its own for every job."""
    return zlib.crc32(job_id.encode())


def text_of(size: int, seed: int) -> str:
    return base64.b64encode(random.Random(seed).randbytes(size)).decode()


def said(size: int, seed: int) -> Trajectory:
    """A trajectory whose text takes so many bytes where it is stored: nothing compresses it further."""
    turn = Turn(
        segment=0, prompt_tokens=1, completion_tokens=1, cached_tokens=None, finish_reason="stop", llm_seconds=0.0,
        text=text_of(size, seed),
    )  # fmt: skip
    span = Span(start=0, end=1, backend="none")
    segment = Segment(prompt_ids=[1], response_ids=[2], loss_mask=[1], logprobs=[-0.5], spans=[span])
    return Trajectory(segments=[segment], turns=[turn], stop_reason="answer")


def of_length(tokens: int, opened_by: Literal["start", "break"] = "start") -> Segment:
    span = Span(start=0, end=tokens, backend="none")
    return Segment(
        prompt_ids=[1], response_ids=[2] * tokens, loss_mask=[1] * tokens, logprobs=[-0.5] * tokens, spans=[span],
        opened_by=opened_by,
    )  # fmt: skip


def told(*segments: Segment) -> Trajectory:
    """A turn for each segment."""
    turns = [
        Turn(segment=number, prompt_tokens=1, completion_tokens=len(each.response_ids), cached_tokens=None,
             finish_reason="stop", llm_seconds=0.0, text="")
        for number, each in enumerate(segments)
    ]  # fmt: skip
    return Trajectory(segments=list(segments), turns=turns, stop_reason="answer")


class Chaos:
    data_sources = ("chaos",)
    schema = Schema(
        optional=(
            "init_ms",
            "run_ms",
            "eval_ms",
            "fail_init",
            "llm",
            "box",
            "linger",
            "stubborn",
            "said_bytes",
            "block_ms",
            "dies_ms",
            "breaks",
            "loses_long",
            "image",
        ),
        sealed=("secret",),
    )
    needs_sandbox = False

    async def init(self, context: Init) -> Prepared:
        payload = context.job.payload
        await asyncio.sleep(payload.get("init_ms", 0) / 1000)
        if (context.job.index + context.job.attempt) % 2 == 0 and payload.get("fail_init"):
            raise RuntimeError("this attempt was told to fail")
        box = await context.sandbox(payload.get("image")) if payload.get("box") else None
        return Prepared(carry={"seen": context.job.job_id}, sandbox=box.handle if box else None)

    async def run(self, context: Run) -> Ran:
        payload = context.job.payload
        assert context.carry["seen"] == context.job.job_id
        if context.sandbox is not None:
            # What is left behind has left its shell, its session and its parent.
            left = f"sleep {payload.get('linger', 0)}"
            result = await context.sandbox.bash(f"(setsid {left} &); sleep 0.02; echo $((6*7))")
            assert result.output.strip() == "42", result
        time.sleep(payload.get("block_ms", 0) / 1000)  # noqa: ASYNC251 - as a handler that blocks its event loop does
        if dies_ms := payload.get("dies_ms"):
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(dies_ms / 1000)
        while payload.get("stubborn"):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        await asyncio.sleep(payload.get("run_ms", 0) / 1000)
        if payload.get("breaks"):
            return Ran(trajectory=told(of_length(1), of_length(1, "break")), export=context.job.job_id)
        if payload.get("loses_long"):
            return Ran(trajectory=told(of_length(20 if context.job.index % 2 else 60)), export=context.job.job_id)
        if size := payload.get("said_bytes"):
            return Ran(trajectory=said(size, seed_of(context.job.job_id)), export=context.job.job_id)
        if not payload.get("llm"):
            return Ran(trajectory=None, export=context.job.job_id)
        prompt = [11, 12, 13 + context.job.index]
        done = await context.policy.generate(prompt, max_tokens=8, temperature=1.0, seed=context.job.index)
        segment = Segment(
            prompt_ids=prompt,
            response_ids=list(done.ids),
            loss_mask=[1] * len(done.ids),
            logprobs=list(done.logprobs),
            spans=[Span(start=0, end=len(done.ids), backend=done.backend)],
        )
        turn = Turn(
            segment=0, prompt_tokens=3, completion_tokens=len(done.ids), cached_tokens=None,
            finish_reason=done.finish_reason, llm_seconds=done.seconds, text="",
        )  # fmt: skip
        return Ran(
            trajectory=Trajectory(segments=[segment], turns=[turn], stop_reason="answer"), export=context.job.job_id
        )

    async def eval(self, context: Eval) -> Score:
        await asyncio.sleep(context.job.payload.get("eval_ms", 0) / 1000)
        assert context.export == context.job.job_id
        if context.job.payload.get("loses_long") and context.job.index % 2 == 0:
            raise RuntimeError("its program was too long for EVAL")
        assert context.sealed["secret"].startswith("CANARY")
        if size := context.job.payload.get("said_bytes"):
            assert context.trajectory is not None
            assert context.trajectory.turns[0].text == text_of(size, seed_of(context.job.job_id))
        if context.job.payload.get("box"):
            fresh = await (await context.sandbox()).bash("ls -A; echo $((6*7))")
            assert fresh.output.strip() == "42", fresh
        return Score(reward=float(context.job.index % 2))


class New(Chaos):
    """The same as another family: one that is installed while the service runs."""

    data_sources = ("chaos-new",)


class Walk:
    """An agent that writes a step down a turn. A step that was taken twice, or left out, shows in what it is told."""

    data_sources = ("walk",)
    schema = Schema(required=("name", "steps"))
    needs_sandbox = True

    async def init(self, context: Init) -> Prepared:
        box = await context.sandbox()
        return Prepared(sandbox=box.handle)

    async def run(self, context: Run) -> Ran:
        assert context.sandbox is not None
        prompts = Prompts(tools=("execute_bash", "execute_ipython_cell"), with_tools="Walk.", without_tools="")
        result = await ask(context, prompts, "{name} walks {steps} steps".format(**context.job.payload))
        taken = await context.sandbox.read_file(STEPS)
        return Ran(trajectory=result.trajectory, export=taken.decode(), agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        wanted = "".join(f"{step}\n" for step in range(context.job.payload["steps"]))
        return Score(reward=float(context.export == wanted), note=context.export)


class Forgetful(Walk):
    """The same without a log of its turns: the death of a worker costs all of them."""

    data_sources = ("walk-again",)

    async def run(self, context: Run) -> Ran:
        return await super().run(_With(context, log=None))  # type: ignore[arg-type]


class Unnamed(Walk):
    """The same without names for its acts: nothing tells one that was begun from one that was not."""

    data_sources = ("walk-unnamed",)

    async def run(self, context: Run) -> Ran:
        box: Any = _With(context.sandbox, named=lambda _: box)
        return await super().run(_With(context, sandbox=box))  # type: ignore[arg-type]


class _With:
    """A thing with some of its attributes replaced."""

    def __init__(self, thing: object, **others: object) -> None:
        self._thing = thing
        self.__dict__ |= others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thing, name)
