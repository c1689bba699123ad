"""Asks a scoring service over HTTP. What it does not answer is no answer's fault: no reward comes of it."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from prorl_mq.schema.faults import Cause
from workers.handlers.blame import CANARIES, Blamed, Raised, blaming
from workers.handlers.clocks import AskTime
from workers.handlers.forks import ScorerFailed

TIMEOUT_S = 300.0
OF_THE_TEXT = frozenset({400, 413, 422, 500})  # statuses that the text may have caused; others speak of the service
DROPPED = (httpx.ReadError, httpx.RemoteProtocolError)  # of a service that was up: the text may have ended it
_R = TypeVar("_R")


class ServiceFailed(ScorerFailed):
    """A service did not answer, or not as it should. The attempt is repeated, then the sample is refilled.

    `answered`: it is up, and this is what it made of this text.
    """

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


class ServiceMissing(Exception):
    """No service is configured; trying again does not help."""

    retryable = False
    cause = Cause.NODE


def urls_in(name: str, what: str) -> list[str]:
    """The comma-separated URLs of an environment variable. Raises `ServiceMissing`."""
    urls = [url.strip().rstrip("/") for url in os.environ.get(name, "").split(",") if url.strip()]
    if not urls:
        raise ServiceMissing(f"no {what} is configured: start the EVAL workers with {name}=http://host:port")
    return urls


async def post(
    urls: Sequence[str], path: str, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
) -> Any:
    """The JSON answer of the first URL that gives one, within five minutes. Raises `ServiceFailed`."""
    faults: list[str] = []
    answered = True
    try:
        async with asyncio.timeout(TIMEOUT_S), httpx.AsyncClient(timeout=None, trust_env=False) as http:  # noqa: S113
            for url in urls:
                try:
                    answer = await http.post(f"{url}{path}", json=body, headers=dict(headers or {}))
                    return answer.raise_for_status().json()
                except httpx.HTTPStatusError as error:
                    said = error.response.text[:200]
                    faults.append(f"{url}{path} answered {error.response.status_code}: {said}")
                    answered = answered and error.response.status_code in OF_THE_TEXT
                except httpx.HTTPError as error:
                    faults.append(f"{url}{path}: {type(error).__name__}: {error}")
                    answered = answered and isinstance(error, DROPPED)
                except (ValueError, RecursionError) as error:  # an answer, and no JSON
                    faults.append(f"{url}{path}: {type(error).__name__}: {error}")
    except TimeoutError:
        faults.append(f"no answer within {TIMEOUT_S:.0f} s")
        answered = False
    raise ServiceFailed("; ".join(faults), answered=answered)


async def scored_by(ask: Callable[[str], Awaitable[_R]], said: str, right: str, what: str) -> _R | Blamed:
    """A service's answer about a text. A text that it alone cannot take, twice, is to blame; raises `ServiceFailed`."""

    async def attempt(text: str, _: AskTime) -> _R:
        try:
            return await ask(text)
        except ServiceFailed as failed:
            if not failed.answered:
                raise
            raise Raised(str(failed), passing=True) from failed

    try:
        return await blaming(attempt, said, [right, *CANARIES], what)
    except ScorerFailed as failed:
        raise ServiceFailed(str(failed)) from failed
