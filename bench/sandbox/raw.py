"""Apptainer and bubblewrap by hand, as one would use them without this project."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.sandbox.contender import Setting
from sandbox.host import unprivileged
from sandbox.isolators.apptainer import find_apptainer
from sandbox.isolators.bubblewrap import find_bwrap
from sandbox.isolators.bubblewrap_argv import PATH

ISOLATED = ("--userns", "--containall", "--no-home", "--no-privs", "--writable-tmpfs")
OFFLINE = ("--net", "--network", "none")
BARE = (
    "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
    "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev",
    "--tmpfs", "/tmp", "--tmpfs", "/run", "--clearenv", "--setenv", "PATH", PATH, "--chdir", "/",
)  # fmt: skip
TIMEOUT_S = 60.0


def run(argv: Sequence[str]) -> None:
    """Raises `subprocess.CalledProcessError` with what the program has said."""
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)


class Apptainer:
    """Bare Apptainer: the image of our own sandboxes, as the same user, with flags that isolate as much."""

    def __init__(self, setting: Setting, directory: Path) -> None:
        self.image = setting.tools.absolute() / "images" / "base"
        configuration = directory / "apptainer"
        configuration.mkdir()
        os.chown(configuration, *unprivileged.identity())
        environment = ["/usr/bin/env", "-i", f"PATH={PATH}", f"APPTAINER_CONFIGDIR={configuration}", "TERM=dumb"]
        program = find_apptainer(setting.tools.absolute())
        self._command = [*unprivileged.prefix(), *environment, program, "--silent"]

    def once(self, argv: Sequence[str], *, binds: Sequence[str] = (), network: bool = False) -> list[str]:
        """A sandbox for one program."""
        bound = [word for bind in binds for word in ("--bind", bind)]
        options = [*ISOLATED, *(() if network else OFFLINE), "--pwd", "/", *bound]
        return [*self._command, "exec", *options, str(self.image), *argv]

    def start(self, name: str) -> list[str]:
        return [*self._command, "instance", "start", *ISOLATED, *OFFLINE, str(self.image), name]

    def stop(self, name: str) -> list[str]:
        return [*self._command, "instance", "stop", name]

    def enter(self, name: str, argv: Sequence[str]) -> list[str]:
        """One more program in a running instance."""
        return [*self._command, "exec", "--userns", "--pwd", "/", f"instance://{name}", *argv]

    @contextmanager
    def instance(self) -> Iterator[str]:
        name = f"bench-{secrets.token_hex(4)}"
        run(self.start(name))
        try:
            yield name
        finally:
            run(self.stop(name))


def bubblewrap(argv: Sequence[str]) -> list[str]:
    """A bare bubblewrap sandbox over the host's /usr for one program."""
    return [*unprivileged.prefix(), find_bwrap(), *BARE, *argv]


def find_tmux() -> str | None:
    return shutil.which("tmux")
