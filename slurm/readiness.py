"""Waits until a server of this task answers over HTTP."""

import asyncio

import httpx

from prorl_mq.errors import ProrlError
from prorl_mq.process.children import Child

LOOK_S = 0.2
ANSWER_S = 5.0


class NotReady(ProrlError):
    """A server ended, or did not answer in time."""


async def answering(child: Child, url: str, *, within_s: float) -> None:
    """Returns when `url` answers with success. Raises `NotReady`."""
    try:
        async with asyncio.timeout(within_s), httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as http:
            while True:
                if child.ended is not None:
                    raise NotReady(child.obituary())
                try:
                    if (await http.get(url)).is_success:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(LOOK_S)  # nothing tells when another process is ready
    except TimeoutError:
        raise NotReady(f"{url} has not answered within {within_s:g} s") from None
