"""`prorl-mq move`: a run goes to another cell of a router, or comes back before it has arrived."""

import argparse
import asyncio
import contextlib
import sys
from typing import Final

from prorl_mq.cli.reaching import reach
from prorl_mq.client import AsyncClient
from prorl_mq.errors import ConfigurationError, ServiceError
from prorl_mq.process.screen.tables import json_text
from prorl_mq.schema.status import RunMove

FAULTS = (ConfigurationError,)
LOOK_S: Final = 1.0  # between two looks at a move
NO_PATH: Final = "no such path"  # what an API answers that is no router


async def run(given: argparse.Namespace) -> int:
    tenant, _, name = given.run.rpartition(":")
    if (given.action == "to") != bool(given.cell):
        raise ConfigurationError("say where: `move to RUN CELL`; `back`, `lost` and `show` take no cell")
    async with reach(given, patience_s=30) as client:
        try:
            found = await _carried_out(client, given, name, tenant or None)
        except ServiceError as error:
            if error.status == 405 or (error.status == 404 and NO_PATH in str(error)):
                raise ConfigurationError(f"{client.url} is no router of several cells: give --url of one") from None
            raise
    print(json_text(found) if given.json else move_text(found))
    return 0


async def _carried_out(client: AsyncClient, given: argparse.Namespace, name: str, tenant: str | None) -> RunMove:
    match given.action:
        case "show":
            return await client.move_of_run(name, tenant=tenant)
        case "to":
            telling = asyncio.create_task(_tell(client, name, tenant, given.cell))
            try:
                return await client.move_run(name, given.cell, within_s=given.seconds, tenant=tenant)
            finally:
                telling.cancel()
        case _:
            return await client.return_run(name, lost=given.action == "lost", tenant=tenant)


async def _tell(client: AsyncClient, name: str, tenant: str | None, cell: str) -> None:
    """Says on standard error how far a move is, whenever that has changed."""
    said = ""
    while True:
        await asyncio.sleep(LOOK_S)
        with contextlib.suppress(ServiceError):
            now = await client.move_of_run(name, tenant=tenant)
            waits = now.state == "there" and now.cell != cell
            text = (
                f"run {name} is in {now.cell} until its jobs have ended and {cell} takes it"
                if waits
                else move_text(now)
            )
            if text != said:
                said = text
                print(f"prorl-mq: {text}", file=sys.stderr, flush=True)


def move_text(found: RunMove) -> str:
    """One line."""
    match found.state:
        case "moving":
            return f"run {found.run_id} is on its way from {found.cell} to {found.to}, {found.pages} pages have come"
        case "moved":
            return f"run {found.run_id} has moved to {found.cell}"
        case "back":
            return f"run {found.run_id} continues in {found.cell}"
        case _:
            return f"run {found.run_id} is in {found.cell}"
