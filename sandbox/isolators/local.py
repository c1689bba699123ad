"""The execution server as a plain process of this machine: no isolation at all, for trusted tasks only.

What runs inside sees the host's files, processes and network with the worker's own rights. Memory, CPU time, file
size and open files are limited; the number of processes is not, for the kernel would count the worker's as well.
"""

import logging
import os
import shutil
import sys
from pathlib import Path

import msgspec

from sandbox.host.child_reaper import Collector
from sandbox.host.process import start_time
from sandbox.isolators.bringup import Started, bring_up, start_failed
from sandbox.isolators.launch import Descriptors, launch
from sandbox.isolators.payload import server_code
from sandbox.lifetime import client, label
from sandbox.lifetime import destroy as destruction
from sandbox.protocol import SandboxHandle, SandboxSpec

KIND = "local"
log = logging.getLogger(__name__)


class LocalProvider:
    """`SandboxProvider` without isolation. Nothing chooses it by default."""

    kind = KIND

    def __init__(self, node: str, state_dir: Path, python_dir: Path | None = None) -> None:
        self.node = node
        self._state_dir = state_dir.absolute()
        self._python_dir = python_dir.absolute() if python_dir is not None else None
        self._interpreter = shutil.which("python3", path="/usr/bin") or sys.executable
        self._collector = Collector()
        log.warning("local sandboxes do not isolate: whatever an agent runs has this worker's rights on this machine")

    async def create(self, spec: SandboxSpec) -> client.SocketSandbox:
        if spec.image is not None or spec.mounts or spec.writable or spec.empty or spec.door:
            raise start_failed(
                spec.owner, "a local sandbox has neither images nor mounts nor a door; ask for bubblewrap"
            )
        return await bring_up(
            lambda: self._start(spec),
            lambda handle: self._settings(spec, Path(handle.directory)),
            spec.owner,
            self._collector,
            sealed=False,
        )

    async def attach(self, handle: SandboxHandle) -> client.SocketSandbox:
        return await client.attach(handle, kind=KIND, node=self.node)

    async def destroy(self, handle: SandboxHandle) -> None:
        client.require(handle, kind=KIND, node=self.node)
        await destruction.destroy(handle)

    async def aclose(self) -> None:
        self._collector.close()

    def _settings(self, spec: SandboxSpec, directory: Path) -> client.Settings:
        limits = client.held_limits(spec.limits)
        del limits["processes"]
        environment = {
            "PATH": os.environ.get("PATH", os.defpath), "HOME": str(directory / "home"), "SHELL": "/bin/bash",
            "LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "MANPAGER": "cat",
        }  # fmt: skip
        return client.Settings(
            cwd=str(directory / "workspace"),
            env={**environment, **spec.environment},
            limits=limits,
            output_bytes=spec.limits.output_bytes,
            python_dir=str(self._python_dir) if self._python_dir else None,
            interpreter=self._interpreter,
        )

    def _start(self, spec: SandboxSpec) -> Started:
        directory, made = label.make_directory(self._state_dir, owner=spec.owner, kind=KIND, node=self.node)
        descriptors = Descriptors()
        errors, errors_in = os.pipe2(os.O_CLOEXEC)
        try:
            (directory / "home").mkdir()
            (directory / "workspace").mkdir()
            server = directory / "server"
            server.write_bytes(server_code(self._interpreter))
            with label.listen(directory) as listener:
                inside = descriptors.add(listener.fileno())
            command = [self._interpreter, "-I", "-S", str(server), "--front", str(inside)]
            front = launch(command, env=label.marked(directory), descriptors=descriptors, stderr=errors_in)
        except OSError as error:
            os.close(errors)
            label.remove(directory)
            raise start_failed(spec.owner, str(error)) from error
        finally:
            descriptors.close()
            os.close(errors_in)
        made = msgspec.structs.replace(made, pid=front, pid_started=start_time(front) or "")
        label.write(directory, made)
        return Started(handle=label.handle_of(directory, made), front=front, stderr=errors)
