"""Opens the way out of a job's sandbox: INIT puts a forwarder into it, RUN answers behind the door."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final

from prorl_mq.rules import egress
from prorl_mq.rules.egress import OperatorList
from prorl_mq.schema.faults import Cause
from sandbox.errors import SandboxError
from sandbox.isolators import socket_dir
from sandbox.protocol import Sandbox
from workers.egress import programs
from workers.egress.ledger import Ledger
from workers.egress.proxy import SOCKET, EgressProxy

VARIABLE: Final = "PRORL_EGRESS"
PORT: Final = 27128  # of the loopback interface that each sandbox has for itself
_PROXY: Final = f"http://127.0.0.1:{PORT}"
_AROUND: Final = "127.0.0.1,localhost,::1"
ENVIRONMENT: Final[Mapping[str, str]] = {
    "HTTPS_PROXY": _PROXY, "https_proxy": _PROXY, "NO_PROXY": _AROUND, "no_proxy": _AROUND,
}  # fmt: skip
_INSIDE: Final = Path(__file__).with_name("inside.py")


class EgressRefused(Exception):
    """A task lists hosts that this node's operator does not let tasks list, or the operator's list cannot be read."""

    retryable = False
    cause = Cause.NODE


def allowed(hosts: Sequence[str], environment: Mapping[str, str] = os.environ) -> OperatorList:
    """The operator's list, of which a task's hosts are. Raises `EgressRefused`."""
    try:
        found = egress.operator_list(environment.get(VARIABLE, ""))
        wrong = egress.refused(hosts, found)
    except ValueError as error:
        raise EgressRefused(f"{VARIABLE} or the task's egress cannot be read: {error}") from error
    if wrong:
        raise EgressRefused(
            f"the task lists {', '.join(wrong)} in egress, which {VARIABLE} of this worker does not allow: add it "
            "there, or `any` for every public host with port 443"
        )
    return found


async def enter(sandbox: Sandbox) -> None:
    """Starts the forwarder in a new sandbox."""
    path = f"{socket_dir.INSIDE}/{SOCKET}"
    done = await sandbox.run(programs.argv(_INSIDE, str(PORT), path), timeout_s=60.0)
    if done.exit_code != 0:
        told = done.stderr.decode(errors="replace")[-300:]
        raise SandboxError(f"no forwarder runs in the sandbox, which needs python3 for the task's egress: {told}")


def way_out(sandbox: Sandbox | None, owner: str, hosts: Sequence[str]) -> AbstractAsyncContextManager[Ledger]:
    """The proxy behind a sandbox's door, and what it has counted. Raises `EgressRefused`."""
    return nullcontext(Ledger()) if sandbox is None or not hosts else _proxied(sandbox, owner, hosts)


@asynccontextmanager
async def _proxied(sandbox: Sandbox, owner: str, hosts: Sequence[str]) -> AsyncIterator[Ledger]:
    if not sandbox.handle.door:
        raise SandboxError("the task lists hosts and its sandbox has no door: upgrade the INIT workers, which made it")
    proxy = EgressProxy(owner, [egress.target(each) for each in hosts], allowed(hosts))
    async with proxy.listening(Path(sandbox.handle.door)):
        yield proxy.ledger
