"""The API as a job: with a bearer token for each tenant, and a file that gives trainers its address."""

import argparse
import asyncio
import os
import secrets
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from prorl_mq.process.children import Program
from prorl_mq.process.crews.crew import Stopping
from prorl_mq.schema import rendezvous
from prorl_mq.schema.ids import DEFAULT_TENANT
from prorl_mq.schema.rendezvous import Place
from prorl_mq.settings import add
from slurm.address import INTERFACE, address_of
from slurm.layout import SHARED, role_file
from slurm.served import Served

SETTINGS: Final = (
    SHARED,
    replace(INTERFACE, help="the network interface through which trainers reach it, such as ib0"),
)
START_S: Final = 180.0
GRACE_S: Final = 25.0


def tokens(path: Path) -> dict[str, str]:
    """Tenant → token. The file is made with one for the default tenant; more can be added to it by hand."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = f'[tenants.{DEFAULT_TENANT}]\ntoken = "{secrets.token_urlsafe(32)}"\nbackends = ["any"]\n'
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    return {name: table["token"] for name, table in tomllib.loads(path.read_text())["tenants"].items()}


async def serve(given: argparse.Namespace) -> int:
    place = given.shared / "rendezvous"
    file = place / "tokens.toml"
    address = address_of(given.interface)

    def program(port: int) -> Program:
        argv = [sys.executable, "-P", "-m", "api", "--host", address, "--port", str(port), "--tokens", str(file)]
        return Program(name="api", argv=argv, env={"PRORL_RENDEZVOUS": str(role_file(place, "ingress"))})

    async def announce(url: str) -> None:
        for tenant, token in tokens(file).items():
            role = "trainer" if tenant == DEFAULT_TENANT else f"trainer-{tenant}"
            await asyncio.to_thread(rendezvous.publish, role_file(place, role), Place(url=url, secret=token))

    async def withdraw(url: str) -> None:
        """Keeps the file: the next API rewrites it, and until then trainers wait."""

    tokens(file)
    with Stopping() as stopping:
        served = Served(program, address=address, ready="/readyz", start_s=START_S, grace_s=GRACE_S)
        return await served.run(stopping, announce, withdraw)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slurm.api_task", description=__doc__)
    add(parser, SETTINGS, {})
    return asyncio.run(serve(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
