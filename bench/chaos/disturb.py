"""The preloaded library `disturb.c`: it is built where it is used, and told what to do through a page of memory."""

import mmap
import os
import struct
from pathlib import Path
from typing import Final

from tests.support.preload import built

SOURCE: Final = Path(__file__).with_name("disturb.c")


class Disturbance:
    """The clock and the fsyncs of the processes that are started with `environment`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_bytes(bytes(mmap.PAGESIZE))
        with file.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), 16)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(built(SOURCE)), "DISTURB": str(self.file)}

    def set_clock(self, off_s: float) -> None:
        """The wall clock is off by so much from now on."""
        struct.pack_into("=q", self._page, 0, round(off_s * 1e6))

    def set_fsync(self, delay_s: float) -> None:
        """Each fsync takes so much longer from now on."""
        struct.pack_into("=q", self._page, 8, round(delay_s * 1e6))

    def lose_what_was_not_synced(self, directory: Path) -> int:
        """Cuts append-only files to what the last fsync found in them, as a crash of the host may: bytes lost."""
        known = Path(f"{self.file}.synced")
        lengths = dict(line.split() for line in known.read_text().splitlines()) if known.exists() else {}
        lost = 0
        for file in directory.glob("appendonlydir/*.incr.aof"):
            about = file.stat()
            keep = min(about.st_size, int(lengths.get(str(about.st_ino), 0)))
            lost += about.st_size - keep
            os.truncate(file, keep)
        return lost
