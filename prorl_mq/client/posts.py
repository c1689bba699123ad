"""Calls of a trainer over kept connections of plain HTTP, each with one write, at a third of a general client's CPU."""

import asyncio
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from prorl_mq import local_token
from prorl_mq.process.http_connection import Connection, ConnectionDropped, HttpAnswer

CONNECT_S: Final = 5.0


class Posts:
    """Connections that one event loop keeps to one service. `uds`: through a Unix socket."""

    def __init__(self, uds: str | None) -> None:
        self._uds = uds
        self._idle: list[Connection] = []

    async def post(self, url: str, body: bytes, *, token: str | None, answer_s: float) -> HttpAnswer | None:
        """The answer to JSON bytes; None for a call that needs a general client: TLS, a proxy, a user's name in the
        address, a server that is not there (whose reasons that client tells well).

        It is sent again where a kept connection turns out to be closed, since each call may be sent twice. Raises
        `TimeoutError`, `ConnectionDropped` or `BrokenAnswer`.
        """
        if not (is_plain(url, near=self._uds is not None) and (token is None or is_plain_text(token))):
            return None
        place = urlsplit(url)
        about = f"Authorization: Bearer {token}\r\n" if token else ""
        about += "Content-Type: application/json\r\n" if body else ""
        target = f"{place.path}?{place.query}" if place.query else place.path
        head = (
            f"POST {target} HTTP/1.1\r\nHost: {place.netloc}\r\nAccept: application/msgpack\r\n"
            f"{about}Content-Length: {len(body)}\r\n\r\n"
        )
        request = (head.encode() + body,)
        async with asyncio.timeout(answer_s):
            while self._idle:
                try:
                    return await self._exchange(self._idle.pop(), request)
                except ConnectionDropped as dropped:
                    if dropped.answered:
                        raise
            try:
                async with asyncio.timeout(CONNECT_S):
                    connection = await Connection.open(url, uds=self._uds)
            except OSError:
                return None
            return await self._exchange(connection, request)

    async def aclose(self) -> None:
        """Closes the connections that no call uses."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the loop closes their sockets

    async def _exchange(self, connection: Connection, request: tuple[bytes]) -> HttpAnswer:
        answer = await connection.exchange(request)
        if not connection.closed:
            self._idle.append(connection)
        return answer


def is_plain_text(text: str) -> bool:
    """True for what may stand in a line of a request as it is."""
    return text.isascii() and text.isprintable() and " " not in text


@lru_cache(maxsize=64)
def is_plain(url: str, *, near: bool) -> bool:
    """True for an address that is reached without TLS, proxy or name of a user. `near`: over no network."""
    place = urlsplit(url)
    if place.scheme != "http" or "@" in place.netloc or place.hostname is None or not is_plain_text(url):
        return False
    near = near or local_token.is_loopback(place.hostname)
    return near or "http" not in getproxies() or bool(proxy_bypass(place.hostname))
