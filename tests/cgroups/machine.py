"""A virtual machine with a root file system in memory: Debian's kernel and programs, and our own `sandbox`."""

import os
import py_compile
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parents[2]
GUEST = Path(os.environ.get("PRORL_SANDBOX_TOOLS", ROOT / ".state")) / "guest"
DIRECTORIES = ("proc", "sys", "dev", "tmp", "run", "new", "etc", "opt")
CODE = "opt/code"
RESULT = "result "
OPTIONS = "console=ttyS0 quiet reboot=t panic=-1 mitigations=off"
MOST_MIB = 128  # memory and disk of a sandbox there, and what is spared for its server
BOOT_S = 1200.0
INIT = """\
#!/bin/busybox sh
export b=/bin/busybox
$b mount -o bind / /new
cd /new
$b mount -o move . /
exec $b chroot . $b sh -c '
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
$b mkdir /dev/shm
$b mount -t tmpfs shm /dev/shm
PATH=/usr/bin:/bin PYTHONPATH=/opt/code /usr/bin/python3 -m tests.cgroups.guest $version $cases
$b poweroff -f
'
"""


class Archive:
    """A cpio archive of the kind that the kernel unpacks before it starts the first program."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._directories: set[str] = {"."}
        self._count = 0

    def add(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        """A file, a link or a directory; the directories that it lies in are added before it."""
        above = str(Path(name).parent)
        if above not in self._directories:
            self.add(above, stat.S_IFDIR | 0o755)
        if stat.S_ISDIR(mode):
            self._directories.add(name)
        self._count += 1
        path = name.encode() + b"\0"
        fields = (self._count, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
        self._parts += [head, bytes(-len(head) % 4), data, bytes(-len(data) % 4)]

    def add_tree(self, top: Path, below: str = "") -> None:
        """All that lies in a directory, below that name."""
        for path in sorted(top.rglob("*")):
            name = str(Path(below, path.relative_to(top)))
            if path.is_symlink():
                self.add(name, stat.S_IFLNK | 0o777, os.fsencode(path.readlink()))
            elif path.is_dir():
                self.add(name, stat.S_IFDIR | 0o755)
            else:
                self.add(name, stat.S_IFREG | (0o755 if path.stat().st_mode & 0o100 else 0o644), path.read_bytes())

    def written(self) -> bytes:
        self.add("TRAILER!!!", 0)
        return b"".join(self._parts)


def root_file_system(guest: Path) -> bytes:
    made = Archive()
    for name in DIRECTORIES:
        made.add(name, stat.S_IFDIR | (0o777 if name in {"tmp", "run"} else 0o755))
    made.add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    made.add("init", stat.S_IFREG | 0o755, INIT.encode())
    made.add("etc/passwd", stat.S_IFREG | 0o644, b"root:x:0:0::/:/bin/sh\nworker:x:1000:1000::/:/bin/sh\n")
    made.add_tree(guest / "root")
    made.add("bin/sh", stat.S_IFLNK | 0o777, b"bash")
    made.add_tree(Path(sysconfig.get_path("platlib"), "msgspec"), f"{CODE}/msgspec")
    with tempfile.TemporaryDirectory() as compiled:
        for name, path in _code():
            made.add(name, stat.S_IFREG | 0o644, path.read_bytes())
            made.add(cache_from_source(name), stat.S_IFREG | 0o644, _compiled(path, Path(compiled, "code")))
    return made.written()


def _compiled(path: Path, target: Path) -> bytes:
    """The machine would take its time for that."""
    py_compile.compile(str(path), str(target), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    return target.read_bytes()


def _code() -> Iterator[tuple[str, Path]]:
    for package in ("sandbox", "tests/cgroups"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield f"{CODE}/{path.relative_to(ROOT)}", path
    yield f"{CODE}/tests/__init__.py", ROOT / "tests/__init__.py"


def boot(version: int, directory: Path, *, short: bool = False) -> Mapping[str, Mapping[str, Any]]:
    """Runs `tests.cgroups.guest` with control groups of one version; its results by name. Blocks until it is off.

    `short`: one attack, with its control.

    The machine's console is in the directory, as `console`.
    """
    archive = directory / "root.cpio"
    archive.write_bytes(root_file_system(GUEST))
    machine = GUEST / "machine"
    libraries = ":".join(str(each) for each in (machine / "usr/lib/x86_64-linux-gnu", machine / "lib/x86_64-linux-gnu"))
    command = [
        str(machine / "lib64/ld-linux-x86-64.so.2"), "--library-path", libraries,
        str(machine / "usr/bin/qemu-system-x86_64"), "-L", str(machine / "usr/share/qemu"),
        "-L", str(machine / "usr/share/seabios"), "-M", "q35", "-accel", "tcg", "-cpu", "max", "-m", "1024",
        "-kernel", str(GUEST / "kernel"), "-initrd", str(archive), "-nodefaults", "-display", "none",
        "-serial", "stdio", "-no-user-config", "-no-reboot",
        "-icount", "shift=1,sleep=off",  # its clock counts its own instructions: a busy host is no reason to time out
        "-append", f"{OPTIONS} version={version} cases={'short' if short else 'all'}",
    ]  # fmt: skip
    environment = {"QEMU_MODULE_DIR": str(machine / "usr/lib/x86_64-linux-gnu/qemu")}
    with (directory / "console").open("wb") as console:
        subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=console, stderr=console, timeout=BOOT_S,
            check=False,
        )  # fmt: skip
    told = (directory / "console").read_text("utf-8", "replace")
    lines = [line.strip().removeprefix(RESULT) for line in told.splitlines() if line.startswith(RESULT)]
    return {row.pop("case"): row for row in (msgspec.json.decode(line) for line in lines)}


def faults(version: int, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a machine's results should not say. Where groups are not ours, the same attacks must succeed."""
    wrong = [f"{name}: {row['failed']}" for name, row in found.items() if "failed" in row]
    delegated = ["delegated", "scope"] if version == 2 else ["delegated"]
    expected = {each: {"version": version, "controllers": ["memory", "pids", "cpu"]} for each in delegated}
    expected["not ours"] = {"version": 0, "controllers": []}
    wrong += [f"{name}: {found.get(name)}, not {row}" for name, row in expected.items() if found.get(name) != row]
    for name in dict.fromkeys(("delegated hidden", *(each for each in found if each.startswith("delegated ")))):
        row = found.get(name, {})
        held = (row.get("done"), row.get("exit_code"), row.get("answers"), row.get("left")) == (False, 137, True, [])
        if name != "delegated cpu" and not (held and row["peak_mib"] <= MOST_MIB):
            wrong.append(f"{name}: {row}")
    if not found.get("not ours hidden", {}).get("done"):
        wrong.append(f"not ours hidden: the control did not succeed: {found.get('not ours hidden')}")
    shares = [found[f"{name} cpu"]["share"] for name in ("delegated", "not ours") if f"{name} cpu" in found]
    if len(shares) == 2 and shares[0] < 2 * shares[1]:
        wrong.append(f"a share of CPU time of {shares[0]} with groups, and {shares[1]} without")
    return wrong


def main() -> int:
    """Prints what both versions give: `python -m tests.cgroups.machine`. 1: something is wrong with it."""
    wrong = []
    with tempfile.TemporaryDirectory() as directory:
        for version in (2, 1):
            found = boot(version, Path(directory))
            for case, row in found.items():
                told = ", ".join(f"{name} {value}" for name, value in row.items())
                print(f"version {version}  {case:<20}  {told}", flush=True)
            wrong += [f"version {version}: {fault}" for fault in faults(version, found)]
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
