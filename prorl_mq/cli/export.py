"""`prorl-mq export`: samples as JSON lines, Parquet or a Hugging Face data set, a row for each segment.

The target appears when it is complete: a run that was killed leaves a part file beside it, and no half target.
"""

import argparse
import asyncio
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.converters.arrow import MISSING, arrow, arrow_schema
from prorl_mq.converters.table import Row, Sample, rows
from prorl_mq.errors import ConfigurationError

FAULTS = (ConfigurationError,)
ROWS_AT_ONCE: Final = 512
Writer = Callable[[Path, Iterable[Row]], int]


async def run(given: argparse.Namespace) -> int:
    print(await asyncio.to_thread(written, _rows(given.samples), given.out, given.format))
    return 0


def written(found: Iterable[Row], out: Path, form: str | None) -> str:
    """Writes rows to a target, by its name where `form` is not given; says how many. Raises `ConfigurationError`."""
    form = form or _form_of(out)
    part = out.with_name(f".{out.name}.part")
    if out.exists():
        raise ConfigurationError(f"{out} already exists: remove it, or choose another --out")
    _remove(part)
    try:
        count = WRITERS[form](part, found)
        part.replace(out)
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        _remove(part)
    return f"{count} rows are in {out} ({form})"


def _form_of(out: Path) -> str:
    return {".jsonl": "jsonl", ".parquet": "parquet"}.get(out.suffix, "datasets")


def _rows(paths: Sequence[Path]) -> Iterator[Row]:
    """Of all files, one after the other. Raises `ConfigurationError` naming the line that is no sample."""
    for path in paths:
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    yield from rows(_sample(path, number, line))
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None


def _sample(path: Path, number: int, line: bytes) -> Sample:
    try:
        return msgspec.json.decode(line, type=Sample)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        fault = f"{path}:{number} is not a sample written by `prorl-mq submit`: {error}"
        raise ConfigurationError(fault) from None


def _to_json_lines(path: Path, found: Iterable[Row]) -> int:
    count = 0
    with path.open("wb") as file:
        for count, row in enumerate(found, 1):  # noqa: B007 - the last one is the answer
            file.write(msgspec.json.encode(row) + b"\n")
    return count


def _to_parquet(path: Path, found: Iterable[Row]) -> int:
    pa, parquet = arrow()
    schema, count, source = arrow_schema(), 0, iter(found)
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while chunk := list(islice(source, ROWS_AT_ONCE)):
            count += len(chunk)
            writer.write_table(
                pa.Table.from_pylist([msgspec.to_builtins(row, builtin_types=(bytes,)) for row in chunk], schema=schema)
            )
    return count


def _to_data_set(path: Path, found: Iterable[Row]) -> int:
    """As `datasets.load_from_disk` reads it."""
    _, parquet = arrow()
    try:
        import datasets
    except ImportError:
        raise ConfigurationError(MISSING) from None
    path.mkdir()
    through = path / "rows.parquet"
    count = _to_parquet(through, found)
    datasets.disable_progress_bars()
    datasets.Dataset(parquet.read_table(through, memory_map=True)).save_to_disk(str(path))
    through.unlink()
    return count


WRITERS: Final[dict[str, Writer]] = {"jsonl": _to_json_lines, "parquet": _to_parquet, "datasets": _to_data_set}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
