"""A host for attacks: things to be found, each of which the sandboxes' user could reach without a sandbox."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from sandbox.host import unprivileged
from sandbox.isolators.payload import joined
from sandbox.server.libc import syscall
from sandbox.server.sealing.calls import MISSING, numbers

MODULES = (
    "server/sealing/calls",
    *(f"attack/inside/{name}" for name in ("tools", "keys", "kernel", "host", "limits", "main")),
)
VARIABLE = "SANDBOX_ATTACK_SECRET"
PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where attacks leave files
SLEEP = ("-S", "-c", "import time; time.sleep(600)")
JOIN_SESSION_KEYRING, SESSION_KEYRING = 1, -3
PROGRAM_S = 30.0


class Surroundings:
    """Files, sockets, keys, a process and a variable of this host. Used as a context, which takes them away again.

    Enter it before the process has threads: these have the session keyring that it had when they began.
    """

    def __init__(self) -> None:
        self.canary = f"prorl-attack-{secrets.token_hex(8)}"
        self._secret = secrets.token_hex(16)
        self._end = contextlib.ExitStack()
        self._python = next(filter(os.path.exists, ("/usr/bin/python3", sys.executable)))

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as end:
            directory = tempfile.mkdtemp(prefix="prorl-attack-", dir="/var/tmp")
            end.callback(shutil.rmtree, directory)
            self._directory = Path(directory)
            self._directory.chmod(0o755)
            self._write(self._directory / "secret", self.canary)
            self._write(self._directory / "attack.py", joined(MODULES).decode())
            for place in ("/tmp", "/dev/shm"):  # noqa: S108 - as above
                end.callback(os.unlink, self._write(Path(place, self.canary), ""))
            self._port = int(self._listener(end, socket.AF_INET, ("127.0.0.1", 0)).getsockname()[1])
            self._listener(end, socket.AF_UNIX, "\0" + self.canary)
            self._listener(end, socket.AF_UNIX, self._socket_path)
            Path(self._socket_path).chmod(0o777)
            marked = [*unprivileged.prefix(), self._python, *SLEEP, f"{self.canary}-process"]
            process = subprocess.Popen(marked)
            end.callback(process.wait)
            end.callback(process.kill)
            self._pid = process.pid
            os.environ[VARIABLE] = self._secret
            end.callback(os.environ.pop, VARIABLE)
            self._add_keys()
            self._end = end.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    @property
    def program(self) -> bytes:
        """The attacks, as one file."""
        return (self._directory / "attack.py").read_bytes()

    @property
    def _socket_path(self) -> str:
        return str(self._directory / "socket")

    def facts(self, of: str) -> dict[str, Any]:
        """Words and numbers that an attack in a sandbox, or in its control, is to look for: `of` names either."""
        return {
            "canary": self.canary, "secret": self._secret, "file": str(self._directory / "secret"), "port": self._port,
            "process": f"{self.canary}-process", "pid": self._pid, "socket_path": self._socket_path,
            "read_key": f"{self.canary}-read", "revoke_key": f"{self.canary}-revoke-{of}",
            "note": f"{self.canary}-note-{of}",
        }  # fmt: skip

    def run_here(self, program: str, facts: dict[str, Any]) -> tuple[int, bytes]:
        """Runs an attack as a plain process of the sandboxes' user; its exit code and output."""
        command = [*unprivileged.prefix(), self._python, str(self._directory / "attack.py"), program, json.dumps(facts)]
        env = {"PATH": os.defpath, VARIABLE: self._secret}
        process = subprocess.Popen(
            command, env=env, cwd="/", start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            output, _ = process.communicate(timeout=PROGRAM_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
        return process.returncode, output

    def take_away(self, mark: str) -> list[str]:
        """Ends and removes what bears a mark on this host; what that was."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark.encode() in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), 9)
                    found.append(f"process {process.name}")
        for place in PLACES:
            with contextlib.suppress(FileNotFoundError):
                Path(place, mark).unlink()
                found.append(f"{place}/{mark}")
        return found

    @staticmethod
    def _write(path: Path, text: str) -> Path:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        return path

    @staticmethod
    def _listener(end: contextlib.ExitStack, family: int, address: Any) -> socket.socket:
        listener = end.enter_context(socket.socket(family))
        listener.bind(address)
        listener.listen()
        return listener

    def _add_keys(self) -> None:
        """A worker's, in a session keyring of its own. Where there can be none, attacks on keys are not applicable."""
        known = numbers(MISSING, os.uname().machine)
        names = [self.facts(of)[key] for of in ("sealed", "control") for key in ("read_key", "revoke_key")]
        with contextlib.suppress(OSError):
            syscall(known["keyctl"], JOIN_SESSION_KEYRING, None)
            for name in dict.fromkeys(names):
                syscall(known["add_key"], b"user", name.encode(), b"secret", 6, SESSION_KEYRING)
