"""Bodies, limits and names of the remote protocol, as both sides read them.

A client ignores fields that it does not know; a server refuses them, so that nothing asked for is left out in silence.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from sandbox.protocol import SandboxLimits

PROTOCOL: Final = 1
ROOT: Final = f"/v{PROTOCOL}"
NAME: Final = re.compile(r"[a-z0-9]{8,64}")
SERVER_NAME: Final = re.compile(r"[A-Za-z0-9_.@+-]{1,96}")
BODY_BYTES: Final = 1 << 20  # of a request or an answer that is no link
MESSAGE_BYTES: Final = 1 << 20  # of one message on a link; either side sends at most a quarter of that
PAGE: Final = 1_000  # sandboxes in one list, names in one heartbeat
TTL_S: Final = 900.0  # that a sandbox lives without a heartbeat or a link
BEAT_S: Final = 20.0  # between pings on a link; the other side has half of that to answer
REQUEST_S: Final = 30.0  # for a request to come; also that a connection may be idle between two of them
SLOWEST_S: Final = 60.0  # for an answer to begin: a client then asks again


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `GET /v1`."""

    protocol: int
    name: str  # of the server: the node in its sandboxes' handles
    kind: str  # by which it isolates


class NewSandbox(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `PUT /v1/sandboxes/NAME`. `service` and `owner` are labels: the server keeps them as they are."""

    service: str = ""
    owner: str
    ttl_s: float = TTL_S
    image: str | None = None  # in the server's own names; None: its base image
    environment: Mapping[str, str] = {}
    network: bool = False
    limits: SandboxLimits = SandboxLimits()
    writable: Sequence[str] = ()
    empty: Sequence[str] = ()


class RemoteState(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox that is there."""

    name: str
    service: str
    owner: str
    expires_s: float  # seconds that it still has without a heartbeat


class RemoteList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `GET /v1/sandboxes`, by name. `more`: there are others behind the last one."""

    sandboxes: Sequence[RemoteState]
    more: bool = False


class HeartbeatBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/heartbeat`: these are still wanted."""

    names: Sequence[str]


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Those of the names that are not there."""

    gone: Sequence[str] = ()


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Body of every answer that is no success. The table of codes is in the protocol's page."""

    error: str
    message: str = ""
