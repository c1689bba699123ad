"""Asks a scoring service over HTTP. What it does not answer is no answer's fault: no reward comes of it."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

TIMEOUT_S = 300.0


class ServiceFailed(Exception):
    """A service did not answer, or not as it should. The attempt is repeated, then the sample is refilled."""

    retryable = True


class ServiceMissing(Exception):
    """No service is configured; trying again does not help."""

    retryable = False


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
    try:
        async with asyncio.timeout(TIMEOUT_S), httpx.AsyncClient(timeout=None, trust_env=False) as http:  # noqa: S113
            for url in urls:
                try:
                    answer = await http.post(f"{url}{path}", json=body, headers=dict(headers or {}))
                    return answer.raise_for_status().json()
                except httpx.HTTPStatusError as error:
                    said = error.response.text[:200]
                    faults.append(f"{url}{path} answered {error.response.status_code}: {said}")
                except (httpx.HTTPError, ValueError) as error:
                    faults.append(f"{url}{path}: {type(error).__name__}: {error}")
    except TimeoutError:
        faults.append(f"no answer within {TIMEOUT_S:.0f} s")
    raise ServiceFailed("; ".join(faults))
