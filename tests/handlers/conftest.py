"""Contexts of the stages as plain values, with real sandboxes."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.messages import Limits, Sampling
from sandbox.bubblewrap import BubblewrapProvider
from sandbox.errors import SandboxUnavailable
from sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec
from tests.agent.chat import MARKERS, TOOLED, ScriptedPolicy, tokenizer
from workers.agent.loading import load_renderer
from workers.handler import Handler, JobView, Schema, Score


class Context:
    """Has what INIT, RUN and EVAL give."""

    def __init__(self, provider: SandboxProvider, job: JobView, **fields: Any) -> None:
        self.provider, self.job = provider, job
        self.made: list[Sandbox] = []
        self.__dict__.update(fields)

    async def sandbox(self, image: str | None = None, **more: Any) -> Sandbox:
        self.made.append(await self.provider.create(SandboxSpec(owner="test", image=image, **more)))
        return self.made[-1]

    async def close(self) -> None:
        for made in self.made:
            await made.close()


class Stages:
    """Takes one job through the three stages, as the workers do."""

    def __init__(self, provider: SandboxProvider, model: Path) -> None:
        self.provider, self.model = provider, model

    def job(self, source: str, payload: dict[str, Any], sealed: tuple[str, ...] = (), index: int = 0) -> JobView:
        return JobView(
            job_id="j",
            task_id="t",
            data_source=source,
            index=index,
            attempt=0,
            payload={name: value for name, value in payload.items() if name not in sealed},
            sampling=Sampling(),
            limits=Limits(),
        )

    async def rollout(
        self, handler: Handler, payload: dict[str, Any], texts: list[str], *, budget_s: float = 60
    ) -> tuple[Any, Score]:
        """What RUN gave, and the score."""
        job = self.job(handler.data_sources[0], payload, tuple(handler.schema.sealed))
        policy = ScriptedPolicy(await load_renderer(self.model), texts)
        init = Context(self.provider, job)
        try:
            prepared = await handler.init(init)
            attached = await self.provider.attach(prepared.sandbox) if prepared.sandbox else None
            deadline = asyncio.get_running_loop().time() + budget_s
            ran = await handler.run(
                Context(self.provider, job, carry=prepared.carry, sandbox=attached, policy=policy, deadline=deadline)  # type: ignore[arg-type]
            )
        finally:
            await init.close()
        return ran, await self.score(handler, payload, ran.export)

    async def score(self, handler: Handler, payload: dict[str, Any], export: Any) -> Score:
        schema: Schema = handler.schema
        sealed = {name: value for name, value in payload.items() if name in schema.sealed}
        job = self.job(handler.data_sources[0], payload, tuple(schema.sealed))
        context = Context(
            self.provider, job, sealed=sealed, export=export, trajectory=None, truncated=False, agent_error=None
        )
        try:
            return await handler.eval(context)  # type: ignore[arg-type]
        finally:
            await context.close()


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    try:
        made = BubblewrapProvider(node="test", state_dir=tmp_path / "state")
    except SandboxUnavailable as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    yield made
    await made.aclose()


@pytest.fixture
def stages(provider: SandboxProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stages:
    model = tmp_path / "model"
    tokenizer(TOOLED, MARKERS).save_pretrained(str(model))
    monkeypatch.setenv("PRORL_TOKENIZER", str(model))
    return Stages(provider, model)
