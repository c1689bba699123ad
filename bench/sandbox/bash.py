"""A `true` in a persistent bash: ours, a terminal by hand, tmux, a new process a command, and other agents' bash."""

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial

from bench.sandbox.contender import Contender, ContenderMissing, Measure, Samples, Setting
from bench.sandbox.ours import sandbox_of, timed
from bench.sandbox.peer import peer
from bench.sandbox.peer_loop import timed as timed_blocking
from bench.sandbox.raw import Apptainer, bubblewrap, find_tmux, run

QUANTITY = "bash true"
SHELL = ("/bin/bash", "--norc", "--noprofile", "--noediting")


@asynccontextmanager
async def ours(setting: Setting, *, kind: str) -> AsyncIterator[Measure]:
    async with sandbox_of(kind, setting, f"bash-{kind}") as sandbox:

        async def once() -> None:
            said = await sandbox.bash("true")
            assert said.exit_code == 0, said

        async def measure(count: int) -> Samples:
            return {QUANTITY: await timed(once, count)}

        yield measure


def inside(stack: ExitStack, setting: Setting, *, kind: str, name: str, argv: Sequence[str]) -> list[str]:
    """The command that runs a program in a running Apptainer instance, or in a bubblewrap sandbox of its own."""
    if kind == "bubblewrap":
        return bubblewrap(argv)
    apptainer = Apptainer(setting, setting.place(name))
    return apptainer.enter(stack.enter_context(apptainer.instance()), argv)


@asynccontextmanager
async def terminal(setting: Setting, *, kind: str) -> AsyncIterator[Measure]:
    """ptyprocess, straight from the host into the sandbox's bash."""
    with ExitStack() as stack:
        command = inside(stack, setting, kind=kind, name=f"pty-{kind}", argv=SHELL)
        async with peer(setting, "pty", "peer_pty", command, QUANTITY) as measure:
            yield measure


class Tmux:
    """The sandbox's bash in a tmux of its own, read from its screen as fast as that goes."""

    def __init__(self, program: str, socket: str, command: Sequence[str]) -> None:
        self._tmux = [program, "-S", socket, "-f", "/dev/null"]
        self._number = 0
        run([*self._tmux, "new-session", "-d", "-s", "b", "-x", "200", "-y", "50", *command])
        self._type("PS1=; PS2=; stty -echo")
        self.once()

    def _type(self, text: str) -> None:
        run([*self._tmux, "send-keys", "-l", text, ";", "send-keys", "Enter"])

    def once(self) -> None:
        self._number += 1
        self._type(f"true; echo DO''NE$?:{self._number}:")
        mark = f"DONE0:{self._number}:".encode()
        while mark not in subprocess.run([*self._tmux, "capture-pane", "-p"], stdout=subprocess.PIPE).stdout:  # noqa: PLW1510
            pass

    def close(self) -> None:
        run([*self._tmux, "kill-server"])


@asynccontextmanager
async def tmux(setting: Setting, *, kind: str) -> AsyncIterator[Measure]:
    program = find_tmux()
    if program is None:
        raise ContenderMissing("tmux is missing: install Debian's package tmux")
    with ExitStack() as stack:
        command = inside(stack, setting, kind=kind, name=f"tmux-{kind}", argv=SHELL)
        session = Tmux(program, str(setting.scratch / f"tmux-{kind}.socket"), command)
        stack.callback(session.close)
        yield partial(_blocking, session.once)


@asynccontextmanager
async def process(setting: Setting, *, kind: str) -> AsyncIterator[Measure]:
    """A new process in the sandbox for each command; with bubblewrap a new sandbox."""
    with ExitStack() as stack:
        command = inside(stack, setting, kind=kind, name=f"process-{kind}", argv=["/bin/true"])
        yield partial(_blocking, partial(run, command))


async def _blocking(once: partial[None], count: int) -> Samples:
    return {QUANTITY: timed_blocking(once, count)}


@asynccontextmanager
async def other(setting: Setting, *, environment: str, module: str, variant: str) -> AsyncIterator[Measure]:
    async with peer(setting, environment, module, [variant], QUANTITY) as measure:
        yield measure


def contenders() -> list[Contender]:
    found = []
    for kind in ("apptainer", "bubblewrap"):
        name = f"{kind}: our bash"
        found += [
            Contender(name=name, samples=300, make=partial(ours, kind=kind)),
            Contender(name=f"{kind}: pseudo-terminal", samples=300, make=partial(terminal, kind=kind), ours=name),
            Contender(name=f"{kind}: tmux", samples=30, make=partial(tmux, kind=kind), ours=name),
            Contender(name=f"{kind}: a process a command", samples=8, make=partial(process, kind=kind), ours=name),
        ]
    for title, environment, variant, samples in (
        ("SWE-ReX, in its process", "swerex", "local", 10),
        ("SWE-ReX, its server", "swerex", "remote", 10),
        ("OpenHands, tmux", "openhands", "tmux", 5),
        ("OpenHands, subprocess", "openhands", "subprocess", 5),
    ):
        make = partial(other, environment=environment, module=f"peer_{environment}", variant=variant)
        found.append(Contender(name=f"host: {title}", samples=samples, make=make, ours="apptainer: our bash"))
    return found
