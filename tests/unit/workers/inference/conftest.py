"""Clients that are closed after the test, and small requests to send with them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from prorl_mq.testing.fake_backend import FakeBackend
from workers.inference.assignment import Endpoint, FixedAssigner, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.request import GenerateRequest

PROMPT = [11, 12, 13, 14, 15]


def request(**changes: Any) -> GenerateRequest:
    fields: dict[str, Any] = {
        "request_id": "job-1-t1",
        "session_id": "job",
        "prompt_ids": PROMPT,
        "max_tokens": 8,
        "temperature": 1.0,
        "seed": 7,
    }
    return GenerateRequest(**{**fields, **changes})


def info(backend: FakeBackend, protocol: WireProtocol = WireProtocol.VLLM_GENERATE, **changes: Any) -> Endpoint:
    return Endpoint(address=backend.address, protocol=protocol, model=backend.model, **changes)


def policy_over(clients: InferenceClients, *backends: FakeBackend, **changes: Any) -> StickyPolicy:
    assigner = changes.pop("assigner", None) or FixedAssigner(*map(info, backends))
    return StickyPolicy(job_id="job", token="1", assigner=assigner, clients=clients, **changes)


async def cancelled(task: "asyncio.Task[Any]") -> bool:
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


@pytest.fixture
async def clients() -> AsyncIterator[InferenceClients]:
    async with InferenceClients(connect_s=2, answer_s=20) as made:
        yield made


@pytest.fixture
async def backend() -> AsyncIterator[FakeBackend]:
    async with FakeBackend() as made:
        yield made


@pytest.fixture
async def other() -> AsyncIterator[FakeBackend]:
    async with FakeBackend() as made:
        yield made
