"""Sandboxes made by Apptainer, without root: one `apptainer exec` each, whose payload is our own first process.

No instance is started: that takes twice as long, and ends in seconds. Images run as directories, never as files: that
needs no FUSE, starts faster, and leaves no helper process behind. Killing process 1 kills all of the sandbox; then the
process outside, Apptainer's own, ends by itself.
"""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from sandbox.errors import NoBaseImage, SandboxError, SandboxUnavailable
from sandbox.host import unprivileged
from sandbox.host.child_reaper import Collector
from sandbox.host.process import start_time
from sandbox.host.reachable import is_open, reachable, reachable_place
from sandbox.images.cache import Image, ImageCache, limit_bytes
from sandbox.images.environment import environment_of
from sandbox.images.tool import call
from sandbox.isolators import outside, socket_dir
from sandbox.isolators.apptainer_argv import (
    PLACES,
    ApptainerLayout,
    apptainer_argv,
    apptainer_environment,
    configuration,
)
from sandbox.isolators.bringup import START_S, Started, abandon, bring_up, start_failed
from sandbox.isolators.bubblewrap_argv import PATH, PYTHON_DIR, WORKSPACE, server_argv
from sandbox.isolators.cpus import on_cpus
from sandbox.isolators.inside import ENVIRONMENT, files_of
from sandbox.isolators.interpreter import python_of
from sandbox.isolators.launch import Descriptors, launch, words_of
from sandbox.isolators.masks import masked_directories, masked_files
from sandbox.isolators.runtime import runtime
from sandbox.isolators.sealed import holder_profile
from sandbox.isolators.writable import memory
from sandbox.isolators.writable.directories import WritableDirectories, prepare
from sandbox.isolators.writable.places import checked
from sandbox.isolators.writable.ways import ON_DISK, Way, Ways
from sandbox.lifetime import cgroup, client, label
from sandbox.lifetime import destroy as destruction
from sandbox.lifetime.first_process import first_process
from sandbox.protocol import SandboxHandle, SandboxSpec

KIND = "apptainer"
NAMES = ("apptainer", "singularity")
CONFIGURATION = "/apptainer.conf"  # in a runtime directory
PROFILE = "/seccomp.json"
EMPTY_FILE = "/empty"
EMPTY_DIRECTORY = f"/opt/{PurePosixPath(PYTHON_DIR).name}"  # where IPython is mounted, in what is shared without it
RESOLVER = "/etc/resolv.conf"
LABELS = ("org.label-schema.build-arch", "org.label-schema.build-date")


def find_apptainer(tools_dir: Path) -> str:
    """The program that ops/install-apptainer.sh has put below `tools_dir`, else the system's."""
    own = (tools_dir / "apptainer" / "bin" / "apptainer").resolve()
    found = str(own) if own.exists() else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise SandboxUnavailable(f"there is no apptainer in {own.parent} or on PATH: run `prorl-mq install-tools`")
    return found


def find_unshare() -> str:
    found = shutil.which("unshare")
    if found is None:
        raise SandboxUnavailable(
            "Apptainer sandboxes need unshare (Debian's package util-linux, 2.36 or later): install it"
        )
    return found


class ApptainerProvider:
    """`SandboxProvider` by Apptainer."""

    kind = KIND

    def __init__(
        self,
        node: str,
        state_dir: Path,
        python_dir: Path | None,
        tools_dir: Path,
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
        self._profile = holder_profile()
        self._state_dir = state_dir.absolute()
        self._program = find_apptainer(tools_dir.absolute())
        self._base = tools_dir.absolute() / "images" / "base"  # a link, where root's tools had to go elsewhere
        self._unshare = find_unshare()
        self._prefix = unprivileged.prefix()
        self._groups = cgroup.delegated()
        if self._groups is not None:
            cgroup.clear(self._groups)
        self._runtimes, cache = self._state_dir / "runtimes", self._state_dir / "image-cache"
        self._python_dir = python_dir.absolute() if python_dir is not None else None
        if self._prefix:
            self._runtimes, cache = reachable_place(self._runtimes), reachable_place(cache)
            self._python_dir = reachable(self._python_dir) if self._python_dir is not None else None
        self._command = [*self._prefix, self._program]
        self._images = ImageCache(cache, self._command, unprivileged.identity(), limit_bytes(os.environ))
        self._ways = Ways(self._state_dir, ways)
        self._collector = Collector()

    async def create(self, spec: SandboxSpec) -> client.SocketSandbox:
        spec = checked(spec)
        with contextlib.closing(await self._image(spec)) as image:
            interpreter = await asyncio.to_thread(python_of, image.path)
            writable = await prepare(self._ways, image.path, spec)
            box = await bring_up(
                lambda: self._start(spec, image, interpreter, writable),
                lambda _: self._settings(spec, image.path, interpreter, writable),
                spec.owner,
                self._collector,
                sealed=self._sealed,
            )
            return await memory.fill(box, image.path, writable.by(Way.MEMORY), spec.owner)

    async def attach(self, handle: SandboxHandle) -> client.SocketSandbox:
        return await client.attach(handle, kind=KIND, node=self.node)

    async def destroy(self, handle: SandboxHandle) -> None:
        client.require(handle, kind=KIND, node=self.node)
        await destruction.destroy(handle)

    async def aclose(self) -> None:
        self._collector.close()

    async def describe(self, image: str | None = None) -> str:
        """Which Apptainer this is, and what it says of an image (of a registry's nothing, before it is fetched)."""
        shown = self._shown(image)
        version = await call(["version"], [self._program])
        labels = {} if "://" in shown else json.loads(await call(["inspect", shown], [self._program]))
        told = [f"{name.rpartition('.')[2]} {labels[name]}" for name in LABELS if name in labels]
        return f"{version} ({self._program}); image {', '.join((shown, *told))}"

    def _shown(self, image: str | None) -> str:
        if image is None or "://" in image:
            return image or str(self._base)
        return str(Path(image).absolute())

    async def _image(self, spec: SandboxSpec) -> Image:
        """Directories are used where they are; everything else goes through the cache."""
        try:
            given = await asyncio.to_thread(self._directory, spec)
            return Image(given) if isinstance(given, Path) else await self._images.fetch(given)
        except SandboxUnavailable:
            raise
        except SandboxError as error:
            raise start_failed(spec.owner, str(error)) from error

    def _directory(self, spec: SandboxSpec) -> Path | str:
        """The image's directory; as text what is none, and must be fetched."""
        base = next((path for path in (self._base, self._base.with_suffix(".sif")) if path.exists()), None)
        if spec.image is None and base is None:
            raise NoBaseImage(f"there is no base image {self._base}: run `prorl-mq install-tools`, or name an image")
        given = spec.image or str(base)
        if not Path(given).is_dir():
            return given
        path = Path(given).resolve()
        if self._prefix and not is_open(path):
            raise SandboxError(f"sandboxes of root run as {unprivileged.USER}, who cannot enter {path}: move the image")
        return path

    def _settings(
        self, spec: SandboxSpec, image: Path, interpreter: str | None, writable: WritableDirectories
    ) -> client.Settings:
        memory = [each for each in PLACES if not any(map(PurePosixPath(each).is_relative_to, spec.writable))]
        return client.Settings(
            cwd=WORKSPACE,
            env={**ENVIRONMENT, **environment_of(image), **spec.environment},
            limits=client.held_limits(spec.limits),
            output_bytes=spec.limits.output_bytes,
            scratch=(*memory[:1], *writable.by(Way.OVERLAY)[:1]),  # what is in memory lies in one file system
            counted=writable.by(*ON_DISK),
            places=(*PLACES, *spec.writable, *spec.empty),
            python_dir=PYTHON_DIR if self._python_dir else None,
            interpreter=interpreter,
            own_network=not spec.network,
        )

    def _start(
        self, spec: SandboxSpec, image: Image, interpreter: str | None, writable: WritableDirectories
    ) -> Started:
        """Blocks for a tenth of a second: makes the directory, starts Apptainer, learns the namespace's process 1."""
        directory, made = label.make_directory(self._state_dir, owner=spec.owner, kind=KIND, node=self.node)
        errors, errors_in = os.pipe2(os.O_CLOEXEC)
        try:
            made = socket_dir.opened(self._state_dir, spec, directory, made)
            made = writable.made(directory, made)
            with label.listen(directory) as listener:
                if interpreter is not None:
                    front, made = self._isolate(
                        spec, image, writable, directory, made, errors_in, interpreter, listener.fileno()
                    )
                else:
                    with outside.Lifeline() as lifeline:
                        front, made = self._isolate(
                            spec, image, writable, directory, made, errors_in, lifeline=lifeline
                        )
                        made = lifeline.serve(listener.fileno(), front, directory, made, errors_in, sealed=self._sealed)
        except OSError as error:
            words = words_of(errors)
            abandon(directory)
            os.close(errors)
            raise start_failed(spec.owner, words or str(error)) from error
        finally:
            os.close(errors_in)
        if interpreter is not None:
            pid = first_process(directory, START_S)
            made = msgspec.structs.replace(made, pid=pid, pid_started=start_time(pid) or "")
            label.write(directory, made)
        return Started(handle=label.handle_of(directory, made), front=front, stderr=errors)

    def _isolate(
        self,
        spec: SandboxSpec,
        image: Image,
        writable: WritableDirectories,
        directory: Path,
        made: label.Label,
        stderr: int,
        interpreter: str | None = None,
        listener: int | None = None,
        *,
        lifeline: outside.Lifeline | None = None,
    ) -> tuple[int, label.Label]:
        """Starts Apptainer with the server in it, or with the holder of a lifeline; Apptainer and the new label."""
        made, enter = cgroup.join(self._groups, directory, made, spec)
        descriptors = Descriptors()
        shown = self._runtime(spec, interpreter)
        try:
            payload = outside.holder_argv(image.path)
            if listener is not None:
                payload = server_argv(descriptors.add(listener), sealed=self._sealed)
            layout = self._layout(spec, image, writable, made, interpreter, payload, shown.path)
            for used in (image, shown):
                if used.descriptor is not None:
                    descriptors.add(used.descriptor)  # in use for as long as the sandbox lives
            # Apptainer's own processes drop their environment; what follows this prefix goes to process 1.
            mark = {f"APPTAINERENV_{name}": value for name, value in label.marked(directory).items()}
            environment = {"PATH": PATH, "APPTAINER_CONFIGDIR": str(directory / "apptainer"), **mark}
            environment |= apptainer_environment(layout)
            with on_cpus(spec, self._groups):
                front = launch(
                    [*enter, *writable.argv(descriptors, self._prefix), *apptainer_argv(layout)],
                    env=environment, descriptors=descriptors, stderr=stderr,
                    stdin=lifeline.stdin if lifeline else None, stdout=lifeline.stdout if lifeline else None,
                )  # fmt: skip
        finally:
            descriptors.close()
            shown.close()
        made = msgspec.structs.replace(made, front_pid=front, front_started=start_time(front) or "")
        label.write(directory, made)
        return front, made

    def _runtime(self, spec: SandboxSpec, interpreter: str | None) -> Image:
        """Our part of the sandbox, in use until it is closed."""
        own = {CONFIGURATION: configuration(spec.limits.disk_bytes), PROFILE: self._profile, EMPTY_FILE: ""}
        return runtime(self._runtimes, interpreter, {**files_of(*unprivileged.identity()), **own}, self._edit)

    def _layout(
        self,
        spec: SandboxSpec,
        image: Image,
        writable: WritableDirectories,
        made: label.Label,
        interpreter: str | None,
        payload: Sequence[str],
        shown: Path,
    ) -> ApptainerLayout:
        bound = {path: f"{shown}{path}" for path in files_of(*unprivileged.identity())}
        if self._sealed:
            bound |= dict.fromkeys(masked_files(), f"{shown}{EMPTY_FILE}")
            bound |= dict.fromkeys(masked_directories(), f"{shown}{EMPTY_DIRECTORY}")
        return ApptainerLayout(
            program=self._program,
            unshare=self._unshare,
            configuration=f"{shown}{CONFIGURATION}",
            image=str(image.path),
            runtime=str(shown / "opt"),
            files={**bound, RESOLVER: RESOLVER} if spec.network else bound,
            network=spec.network,
            payload=payload,
            python_dir=str(self._python_dir) if self._python_dir else None,
            mounts=socket_dir.mounts(spec, made),
            writable=writable.sources() | dict[str, str | None].fromkeys(spec.empty),
            holder_profile=f"{shown}{PROFILE}" if self._sealed and interpreter is None else None,
        )
