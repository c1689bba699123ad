"""The oldest releases of servers that a protocol is kept with, and what a server says it is."""

import re
from typing import Final

import msgspec

from workers.inference.assignment import WireProtocol
from workers.inference.protocol import InferenceError
from workers.inference.transport import HttpTransport


class KnownServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server behind a protocol: its name, where it tells its version, the oldest that is used, and why."""

    name: str
    route: str
    oldest: tuple[int, ...]
    since: str


SERVERS: Final = {
    WireProtocol.VLLM_GENERATE: KnownServer(
        name="vLLM", route="/version", oldest=(0, 26), since="earlier token routes were not checked"
    ),
    WireProtocol.SGLANG_GENERATE: KnownServer(
        name="SGLang", route="/server_info", oldest=(0, 5, 10), since="earlier ones lack its modes of a pause"
    ),
    WireProtocol.COMPLETIONS: KnownServer(  # others that speak it have numbers of their own
        name="vLLM", route="/version", oldest=(0, 10, 2), since="earlier ones return no token ids"
    ),
}
_NUMBERS: Final = re.compile(r"(\d+(?:\.\d+)+)(?!.*dev)")  # a build of a development tree has no number of its own


class _Told(msgspec.Struct):
    version: str


async def server_version(transport: HttpTransport, address: str, protocol: WireProtocol, within_s: float) -> str | None:
    """`vLLM 0.32.0`, as the server tells it; None where it does not. Raises `InferenceError` for an older one."""
    server = SERVERS.get(protocol)
    if server is None:
        return None
    try:
        answer = await transport.get(address, server.route, answer_s=within_s)
        told = msgspec.json.decode(answer.body, type=_Told).version if answer.status == 200 else ""
    except (InferenceError, msgspec.DecodeError):
        return None
    found = _NUMBERS.match(told)
    if found is None:
        return None
    if tuple(map(int, found[1].split("."))) < server.oldest:
        oldest = ".".join(map(str, server.oldest))
        raise InferenceError(
            f"backend {address}: {server.name} {found[1]} is too old for {protocol.value}: it takes {oldest} or later "
            f"({server.since}); update it"
        )
    return f"{server.name} {found[1]}"
