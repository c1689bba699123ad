"""Entries of /proc that tell of the host, its kernel or other users' keys, and that a sandbox sees empty.

What programs need to size themselves (`meminfo`, `stat`, `cpuinfo`, `loadavg`, `version`) stays.
"""

import functools
from pathlib import Path

FILES = (
    "keys", "key-users", "timer_list", "kallsyms", "config.gz", "interrupts", "softirqs", "iomem", "ioports",
    "diskstats", "partitions", "buddyinfo", "zoneinfo", "crypto", "devices", "misc", "cmdline",
)  # fmt: skip
DIRECTORIES = ("acpi", "bus", "driver", "fs", "irq", "scsi", "tty")


@functools.cache
def masked_files() -> tuple[str, ...]:
    """Those that this kernel has."""
    return tuple(f"/proc/{name}" for name in FILES if Path("/proc", name).is_file())


@functools.cache
def masked_directories() -> tuple[str, ...]:
    """The same for directories."""
    return tuple(f"/proc/{name}" for name in DIRECTORIES if Path("/proc", name).is_dir())
