"""The client of a command, at the address and with the token given or found; it says when the service is silent."""

import argparse
import sys
from typing import Final

from prorl_mq import local_token
from prorl_mq.client import AsyncClient
from prorl_mq.client.transport import Unreachable
from prorl_mq.clock import monotonic
from prorl_mq.process.screen.terminal import control

AGAIN_S: Final = 10.0  # between two remarks


def reach(given: argparse.Namespace, *, patience_s: float = 60.0) -> AsyncClient:
    """A client that waits up to `patience_s` for a service that does not answer, and says so after a second."""
    url = given.url or local_token.address(getattr(given, "state_dir", None))
    token = given.token
    if token is None and "state_dir" in given:  # a client looks where this process's directory is said to be
        token = local_token.found(url, given.state_dir)
    client = AsyncClient(url, token=token, patience_s=patience_s)
    client.waiting = Remarks().say
    return client


class Remarks:
    """Remarks for a user during an outage, now and then."""

    def __init__(self) -> None:
        self._next = 0.0

    def say(self, error: Unreachable, lasted_s: float) -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next = now + AGAIN_S
        if sys.stderr.isatty():
            control(sys.stderr, "\r\x1b[K")  # a line of progress may be there
        print(f"prorl-mq: for {lasted_s:.0f} s: {error}; trying again", file=sys.stderr, flush=True)
