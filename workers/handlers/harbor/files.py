"""The files of a task's directory as part of a row: text, or base64 where they are none."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from stat import S_ISREG

import msgspec

from sandbox.protocol import Sandbox
from workers.handlers.rows import BadRow

TASK_BYTES = 8 << 20  # of all files of one task; a row takes twice as much


class TaskFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file, by its path below the directory that it belongs to."""

    path: str
    text: str | None = None
    base64: str | None = None
    mode: int = 0o644

    def data(self) -> bytes:
        """Its content. Raises `BadRow`."""
        if self.text is not None:
            return self.text.encode()
        try:
            return base64.b64decode(self.base64 or "", validate=True)
        except (ValueError, binascii.Error) as error:
            raise BadRow(f"the file {self.path} is no base64: {error}") from error


class Unfit(ValueError):
    """A directory that cannot be carried in a row."""


def packed(directory: Path, task: Path) -> list[TaskFile]:
    """All files below a directory of a task. Links are followed as long as they stay within the task. Blocks.

    Raises `Unfit`.
    """
    found: list[TaskFile] = []
    size = 0
    for path in _files(directory, task.resolve(), ()):
        size += path.stat().st_size
        if size > TASK_BYTES:
            raise Unfit(f"{directory.name}/ has more than {TASK_BYTES >> 20} MiB: put large files into the image")
        name = str(path.relative_to(directory))
        if not name.isascii() and b"?" in name.replace("?", "").encode(errors="replace"):
            raise Unfit(f"{directory.name}/ has a file whose name {name!a} is no UTF-8: rename it")
        found.append(_file(name, path.read_bytes(), path.stat().st_mode & 0o777))
    return found


def text_of(path: Path) -> str:
    """A file of a task as text. Blocks. Raises `Unfit`, `OSError`, `UnicodeDecodeError`."""
    about = path.stat()
    if not S_ISREG(about.st_mode):
        raise Unfit(f"{path.name} is no file")
    if about.st_size > TASK_BYTES:
        raise Unfit(f"{path.name} has more than {TASK_BYTES >> 20} MiB")
    return path.read_text(encoding="utf-8")


def _files(directory: Path, root: Path, above: tuple[Path, ...]) -> Iterable[Path]:
    for path in sorted(directory.iterdir()):
        resolved = path.resolve()
        if not resolved.is_relative_to(root):
            raise Unfit(f"{path} leads out of the task")
        if path.is_dir():
            if resolved in above:
                raise Unfit(f"{path} leads back to a directory above it")
            yield from _files(path, root, (*above, resolved))
        elif path.is_file():
            yield path
        else:
            raise Unfit(f"{path} is no file")


def _file(path: str, data: bytes, mode: int) -> TaskFile:
    try:
        return TaskFile(path=path, text=data.decode(), mode=mode)
    except UnicodeDecodeError:
        return TaskFile(path=path, base64=base64.b64encode(data).decode(), mode=mode)


async def put(sandbox: Sandbox, files: Sequence[TaskFile], directory: str) -> None:
    """Writes files below a directory of a sandbox. Raises `BadRow` for paths that lead out of it."""
    for file in files:
        inner = PurePosixPath(file.path)
        if inner.is_absolute() or ".." in inner.parts or not inner.parts:
            raise BadRow(f"the file {file.path!r} is not below its directory")
    places = sorted({str(PurePosixPath(directory, file.path).parent) for file in files})
    if places:
        await sandbox.run(["mkdir", "-p", "--", *places])
    for file in files:
        await sandbox.write_file(f"{directory}/{file.path}", file.data(), mode=file.mode)
