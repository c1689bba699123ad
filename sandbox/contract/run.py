"""Runs the whole contract against a server: its routes, its links, its seal, and every tool in one sandbox."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from sandbox.contract.links import LINK_CHECKS
from sandbox.contract.routes import ROUTE_CHECKS
from sandbox.contract.seal import SEAL_CHECKS
from sandbox.contract.trial import ContractTrial
from sandbox.remote.access import ServerAccess
from sandbox.selfcheck import Check, selfcheck, timed

CONTRACT: Final[tuple[Callable[[ContractTrial], Awaitable[None]], ...]] = (*ROUTE_CHECKS, *LINK_CHECKS, *SEAL_CHECKS)


async def checked(access: ServerAccess, check: Callable[[ContractTrial], Awaitable[None]]) -> Check:
    """One check with sandboxes of its own, which are destroyed."""
    trial = ContractTrial(access)
    try:
        return await timed(check.__name__.replace("_", " "), check(trial))
    finally:
        await trial.aclose()


async def contract(access: ServerAccess) -> AsyncIterator[Check]:
    """All checks, one after the other. One that fails does not keep the next from running."""
    for check in CONTRACT:
        yield await checked(access, check)
    trial = ContractTrial(access)
    try:
        for done in await selfcheck(trial.provider):
            yield done
    finally:
        await trial.aclose()
