"""The execution server on the host's side, for images that have no Python to run it with.

The sandbox itself holds only a shell that waits for the end of a pipe. The server is started beside it, as the user
that the sandbox is outside, and joins its namespaces: bash on a pseudo-terminal, programs, files and edits are the same
as elsewhere, for it is the same server. It dies with the sandbox, and the sandbox with it.
"""

import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from sandbox.host import unprivileged
from sandbox.host.process import start_time
from sandbox.isolators.launch import Descriptors, launch
from sandbox.isolators.payload import server_code
from sandbox.lifetime import cgroup, label
from sandbox.lifetime.first_process import first_below

HOLD = "echo ready; while read -r _; do :; done"
SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
READY_S = 20.0


def holder_argv(image: Path) -> list[str]:
    """Command that runs in the sandbox in the server's place."""
    shell = next((shell for shell in SHELLS if os.path.lexists(image / shell[1:])), SHELLS[-1])
    return [shell, "-c", HOLD]


class Lifeline:
    """The pipes between a holder and its server: `stdin` and `stdout` are the holder's."""

    def __init__(self) -> None:
        self.stdin, self._alive = os.pipe2(os.O_CLOEXEC)
        self._ready, self.stdout = os.pipe2(os.O_CLOEXEC)
        self._open = [self.stdin, self._alive, self._ready, self.stdout]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The holder ends with the last process that has `_alive` open: the server, if one was started."""
        while self._open:
            os.close(self._open.pop())

    def serve(
        self, listener: int, front: int, directory: Path, made: label.Label, stderr: int, *, sealed: bool
    ) -> label.Label:
        """Starts the server of the sandbox that `front` has isolated; the label with it, and with process 1.

        Blocks for some milliseconds. Raises `OSError`; what the server says of a failure is on `stderr`, and `front`
        is dead then.
        """
        try:
            self._wait_for_holder()
            pid = made.pid or first_below(front)
            enter = cgroup.entering(made.cgroups)
            server = self._start(listener, pid, stderr, label.marked(directory), enter, sealed=sealed)
        except OSError:
            os.kill(front, signal.SIGKILL)
            os.waitpid(front, 0)
            raise
        made = msgspec.structs.replace(
            made, pid=pid, pid_started=start_time(pid) or "",
            server_pid=server, server_started=start_time(server) or "",
        )  # fmt: skip
        label.write(directory, made)
        return made

    def _wait_for_holder(self) -> None:
        os.close(self._open.pop())  # `stdout`, or its end would not be seen
        if not (select.select([self._ready], [], [], READY_S)[0] and os.read(self._ready, 1)):
            raise OSError("the image's shell did not start")

    def _start(
        self, listener: int, pid: int, stderr: int, env: Mapping[str, str], enter: Sequence[str], *, sealed: bool
    ) -> int:
        """Starts a server that enters the namespaces of `pid`, and its groups; the server's pid, once it has."""
        descriptors = Descriptors()
        told, telling = os.pipe2(os.O_CLOEXEC)
        try:
            code = descriptors.add_data("server", server_code(sys.executable))
            numbers = [descriptors.add(listener), descriptors.add(self._alive), pid]
            numbers += [] if os.geteuid() else unprivileged.identity()
            words = ["--enter"] if sealed else ["--bare", "--enter"]
            command = [*enter, sys.executable, "-I", "-S", f"/proc/self/fd/{code}", *words, *map(str, numbers)]
            starter = launch(command, env=env, descriptors=descriptors, stdout=telling, stderr=stderr)
        finally:
            os.close(telling)
            descriptors.close()
        os.waitpid(starter, 0)
        with os.fdopen(told, "rb") as stream:
            text = stream.read()
        if not text:
            raise OSError(f"the execution server could not enter the sandbox through process {pid}")
        return int(text)
