"""The head of a request to the proxy: CONNECT with a host and a port, and nothing else."""

import asyncio
import re
from typing import Final

from prorl_mq.rules import egress
from prorl_mq.rules.egress import NamedHost

MOST_BYTES: Final = 8 << 10
WITHIN_S: Final = 10.0
_LINE: Final = re.compile(r"([A-Z]+) ([!-~]+) HTTP/1\.[01]")  # what is asked for goes into records as it is


class ConnectRefused(Exception):
    """A connection that is not opened: the status that says so, what was asked for, and why."""

    def __init__(self, status: str, asked: str, why: str) -> None:
        super().__init__(why)
        self.status, self.asked = status, asked


async def read(reader: asyncio.StreamReader) -> NamedHost:
    """Raises `ConnectRefused`, and `OSError` or `EOFError` where the client has gone."""
    try:
        async with asyncio.timeout(WITHIN_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        raise ConnectRefused("408 Request Timeout", "", f"the head of a request comes within {WITHIN_S:g} s") from None
    except asyncio.LimitOverrunError:
        told = f"the head of a request has at most {MOST_BYTES} bytes"
        raise ConnectRefused("431 Request Header Fields Too Large", "", told) from None
    return parsed(head)


def parsed(head: bytes) -> NamedHost:
    """Raises `ConnectRefused`."""
    line = head.partition(b"\r\n")[0].decode("latin-1")
    found = _LINE.fullmatch(line)
    if found is None:
        raise ConnectRefused("400 Bad Request", "", "this is no request to a proxy")
    if found[1] != "CONNECT":
        raise ConnectRefused("405 Method Not Allowed", "", "only CONNECT is taken: use https")
    if ":" not in found[2]:
        raise ConnectRefused("400 Bad Request", found[2][:200], "CONNECT needs a port: HOST:PORT")
    try:
        return egress.target(found[2])
    except ValueError as error:
        raise ConnectRefused("403 Forbidden", found[2][:200], str(error)) from None
