"""The cell `1+1` in a persistent IPython: ours, and kernels behind jupyter_client in the same image."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from bench.sandbox.contender import Contender, Measure, Samples, Setting
from bench.sandbox.ours import sandbox_of, timed
from bench.sandbox.peer import peer
from bench.sandbox.raw import Apptainer
from sandbox.host import unprivileged

QUANTITY = "IPython 1+1"
KERNEL = (
    "/usr/bin/env", "IPYTHONDIR=/tmp/ipython", "HOME=/tmp",
    "/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "/mnt/kernel.json",
)  # fmt: skip


@asynccontextmanager
async def ours(setting: Setting, *, kind: str) -> AsyncIterator[Measure]:
    async with sandbox_of(kind, setting, f"cells-{kind}") as sandbox:

        async def once() -> None:
            said = await sandbox.ipython("1+1")
            assert said.output.endswith("2\n"), said  # before it, IPython warns once of its 1000th output

        async def measure(count: int) -> Samples:
            return {QUANTITY: await timed(once, count)}

        await once()
        magic = await sandbox.ipython("%pwd")
        assert magic.ok, f"cells are not IPython's: {magic.output}"
        yield measure


@asynccontextmanager
async def jupyter(setting: Setting, *, transport: str) -> AsyncIterator[Measure]:
    """Over tcp it needs the host's network, so it is less isolated than ours."""
    place = setting.place(f"jupyter-{transport}")
    connection = setting.place(f"kernel-{transport}")
    os.chown(connection, *unprivileged.identity())
    kernel = Apptainer(setting, place).once(KERNEL, binds=[f"{connection}:/mnt"], network=transport == "tcp")
    async with peer(setting, "jupyter", "peer_jupyter", [str(connection), transport, *kernel], QUANTITY) as measure:
        yield measure


def contenders() -> list[Contender]:
    first = "apptainer: our cells"
    over = {name: partial(jupyter, transport=name) for name in ("ipc", "tcp")}
    return [
        Contender(name=first, samples=200, make=partial(ours, kind="apptainer")),
        *(
            Contender(name=f"apptainer: jupyter_client, {name}", samples=60, make=make, ours=first)
            for name, make in over.items()
        ),
        Contender(name="bubblewrap: our cells", samples=200, make=partial(ours, kind="bubblewrap")),
    ]
