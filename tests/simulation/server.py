"""A real server whose clock is a page of memory: it answers one call at a time, at the time that the caller says."""

import ctypes
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import hiredis
from redis._parsers.base import BaseParser
from redis.exceptions import ResponseError

from prorl_mq.process import redis_server
from tests.support.preload import built

EPOCH_US: Final = 1_800_000_000_000_000  # when every history begins
APART_US: Final = 1_000_000  # by which the monotonic clock grows between two histories
NAMES: Final = [b"5e%06x" % number for number in range(4096)]  # of a history's incarnations of its server
SOURCE: Final = Path(__file__).with_name("clock.c")


class Server:
    """One server process for many histories, spoken to over one socket."""

    def __init__(self, binary: str | None = None, *, ordered: bool = True) -> None:
        """`ordered`: hashes and sets are read in the same order in each history, at the price of searches in them."""
        self._place = Path(tempfile.mkdtemp(prefix="sim"))
        clock = self._place / "clock"
        clock.write_bytes(bytes(mmap.PAGESIZE))
        with clock.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 16)
        self._names: list[tuple[bytes, bytes]] = []  # of its incarnations: as it draws it, as histories know it
        self._monotonic_us = APART_US
        self._base_us = 0
        self.set_time(EPOCH_US, 0)
        self._process = self._start(binary or redis_server.find_binary(), clock, ordered=ordered)
        self._socket = self._connected()
        self._reader = hiredis.Reader(replyError=said)
        self.call(("DEBUG", "SET-ACTIVE-EXPIRE", "0"))  # keys past their time go when looked for
        _, self.unknown = self.send(hiredis.pack_command(("EVALSHA", "0" * 40, "0")))  # its answer to such a hash

    def _start(self, binary: str, clock: Path, *, ordered: bool) -> "subprocess.Popen[bytes]":
        argv = [binary, "--port", "0", "--unixsocket", str(self._place / "s"), "--dir", str(self._place)]
        argv += ["--save", "", "--appendonly", "no", "--hz", "1", "--maxmemory-policy", "noeviction"]
        argv += ["--enable-debug-command", "yes"]  # for another replication id after a simulated restart
        # Small encodings keep the order of insertion, hash tables that of a random seed.
        for kind in ("hash", "set") if ordered else ():
            argv += [f"--{kind}-max-listpack-entries", "100000", f"--{kind}-max-listpack-value", "1000000"]
        environment = {**os.environ, "LD_PRELOAD": str(built(SOURCE)), "SIMCLOCK": str(clock)}
        log = (self._place / "log").open("wb")
        return subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one libc call
        )

    def _connected(self) -> socket.socket:
        give_up = time.monotonic() + 60
        while True:
            link = socket.socket(socket.AF_UNIX)
            try:
                link.connect(str(self._place / "s"))
            except OSError:
                link.close()
                if self._process.poll() is not None or time.monotonic() > give_up:
                    said = (self._place / "log").read_text(errors="replace")[-800:]
                    raise RuntimeError(f"the simulated server did not start:\n{said}") from None
                time.sleep(0.01)
            else:
                return link

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """SIGKILL: with its clock standing still the server never looks at SIGTERM."""
        self._socket.close()
        self._process.kill()
        self._process.wait()
        self._page.close()
        shutil.rmtree(self._place, ignore_errors=True)

    def set_time(self, wall_us: int, elapsed_us: int) -> None:
        """`elapsed_us` since the history began; the monotonic clock of the server never goes back."""
        self._monotonic_us = max(self._monotonic_us, self._base_us + elapsed_us)
        struct.pack_into("=qq", self._page, 0, wall_us, self._monotonic_us)

    def begin(self) -> None:
        """An empty server, for a new history. It keeps compiled scripts: the network knows which a history has sent."""
        self._base_us = self._monotonic_us + APART_US
        self.set_time(EPOCH_US, 0)
        self.call(("CONFIG", "SET", "maxmemory", "0"))
        self.empty()

    def empty(self) -> None:
        """No keys, and its first name: what it has been sent may be sent again."""
        self.call(("FLUSHALL", "SYNC"))
        self._names.clear()
        self._named(NAMES[0])

    def rename(self, name: bytes) -> None:
        """Another replication id, as a restarted server has. Histories know it by `name`, its first 8 letters."""
        self.call(("DEBUG", "CHANGE-REPL-ID"))
        self._named(name)

    @property
    def name(self) -> str:
        """The first 8 letters of its replication id, as histories know it."""
        return self._names[-1][1].decode()

    def _named(self, name: bytes) -> None:
        info: bytes = self.call(("INFO", "replication"))
        drawn = info.partition(b"master_replid:")[2][:40]
        self._names += [(drawn, 5 * name), (drawn[:8], name)]

    def send(self, packed: bytes, replies: int = 1) -> tuple[list[Any], bytes]:
        """Sends packed commands; their replies, parsed and as bytes. An error is a reply like any other."""
        for drawn, known in self._names:
            packed = packed.replace(known, drawn)
        self._socket.sendall(packed)
        found: list[Any] = []
        raw = b""
        while len(found) < replies:
            data = self._socket.recv(1 << 18)
            if not data:
                raise RuntimeError(f"the simulated server died: {(self._place / 'log').read_text()[-800:]}")
            raw += data
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                found.append(reply)
        for drawn, known in self._names:
            if drawn in raw:
                raw = raw.replace(drawn, known)
                self._reader.feed(raw)
                found = [self._reader.gets() for _ in found]
        return found, raw

    def call(self, command: tuple[Any, ...]) -> Any:
        """One command outside of any history's trace. Raises its error."""
        [reply], _ = self.send(hiredis.pack_command(command))
        if isinstance(reply, Exception):
            raise reply
        return reply


def said(text: str) -> ResponseError:
    """An error reply as redis-py raises it."""
    error: ResponseError = BaseParser.parse_error(text)
    return error


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
