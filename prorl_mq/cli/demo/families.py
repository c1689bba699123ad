"""The tasks that the demo rolls out for one task family, and what its workers need for them."""

import importlib.util
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.process.http_server import HttpRequest, HttpResponse, HttpServer
from prorl_mq.shipped import shipped

EXAMPLES: Final = shipped("examples")
ENVIRONMENT: Final = "little_sums"  # of verifiers, in examples/environments


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A file of tasks, of which the first `most` are taken, and the variables that workers start with."""

    tasks: Path
    most: int | None = None
    environment: Mapping[str, str] = {}


@asynccontextmanager
async def offered(family: str | None, state: Path) -> AsyncIterator[Offer]:
    """As long as it lasts, what the family needs is there. Raises `ConfigurationError` that says what brings it."""
    match family:
        case None:
            yield Offer(tasks=EXAMPLES / "demo_tasks.jsonl")
        case "swe":
            yield _swe(state)
        case "verifiers":
            yield _verifiers()
        case "gem":
            yield _gem(state)
        case "reward_service":
            async with _scoring() as url:
                yield Offer(tasks=file_of(family), environment={"PRORL_REWARD_URLS": url})
        case _:
            yield Offer(tasks=file_of(family))


def file_of(family: str) -> Path:
    """The family's example tasks."""
    return EXAMPLES / "swe" / "instances.jsonl" if family == "swe" else EXAMPLES / "families" / f"{family}.jsonl"


def _swe(state: Path) -> Offer:
    images = state / "images" / "swe" / "images.json"
    if not images.is_file():
        raise ConfigurationError(f"{images} is missing: `make swe-images` in a checkout creates it")
    return Offer(tasks=file_of("swe"), most=2)


def _gem(state: Path) -> Offer:
    fetched = state / "trainers" / "whole"
    if importlib.util.find_spec("gem") is None and not (fetched / "gem").is_dir():
        raise ConfigurationError(
            "the package gem is missing: pip install --no-deps gem-llm, or, in a checkout, `make trainer-types`"
        )
    return Offer(tasks=file_of("gem"), environment=_importing(fetched))


def _importing(place: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))}


def _verifiers() -> Offer:
    if importlib.util.find_spec("verifiers") is None:
        raise ConfigurationError(
            "the package verifiers is missing: pip install 'prorl-mq[verifiers]', or, in a checkout, `make setup`"
        )
    return Offer(
        tasks=file_of("verifiers"),
        environment={"PRORL_VERIFIERS": ENVIRONMENT, **_importing(EXAMPLES / "environments")},
    )


@asynccontextmanager
async def _scoring() -> AsyncIterator[str]:
    """The URL of a reward service, as a trainer would bring one."""
    server = HttpServer(_answer)
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


async def _answer(request: HttpRequest) -> HttpResponse:
    if (request.method, request.path) != ("POST", "/compute_score"):
        return HttpResponse(status=404)
    return HttpResponse(body=json.dumps(_scored(json.loads(request.body))).encode())


def _scored(asked: Mapping[str, Any]) -> dict[str, float]:
    """1 for the right last word, and a part beside it."""
    words = str(asked["solution_str"]).split()
    right = bool(words) and words[-1].strip(".!*") == str(asked["ground_truth"])
    return {"score": float(right), "words": float(len(words))}
