"""The IP addresses behind the name of a host, looked up in threads of their own: a slow one holds up nothing else."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

WITHIN_S: Final = 5.0
_THREADS: Final = ThreadPoolExecutor(32, thread_name_prefix="resolver")  # threads begin when they are needed


async def look_up(host: str, *, within_s: float = WITHIN_S, threads: ThreadPoolExecutor = _THREADS) -> Sequence[str]:
    """Every address of a host, in the resolver's order; an IP address is its own. Raises `OSError`.

    A look-up that is given up keeps its thread until the resolver gives up: who asks for what others wrote brings
    `threads`.
    """
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    async with asyncio.timeout(within_s):
        return await asyncio.get_running_loop().run_in_executor(threads, _looked_up, host)


def _looked_up(host: str) -> Sequence[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))
