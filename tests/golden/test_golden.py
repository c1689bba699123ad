"""What released versions wrote is read by this version, each field as it was meant then."""

import shutil
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from prorl_mq.cli import main
from prorl_mq.cli.out_file import OutFile
from prorl_mq.duties.intake import Intake
from prorl_mq.schema.codec import compress, decode, decode_any, decode_trajectory, encode, expand
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.intake import decode_answer, decode_message
from prorl_mq.schema.messages import FIRST, SCHEMA_VERSION, GroupRecord
from prorl_mq.schema.status import BatchReport
from prorl_mq.schema.task_schema import Schema
from prorl_mq.schema.trajectory import check
from prorl_mq.store import results, work
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from tests.golden import make

HERE: Final = Path(__file__).parent
VERSIONS: Final = sorted(path for path in HERE.iterdir() if (path / "expected.json").exists())
PACKED: Final = [path for version in VERSIONS for path in sorted((*version.glob("*.msgpack"), *version.glob("*.bin")))]
# Fields of old versions that mean nothing any more. Each was at its default wherever the files have it.
GONE: Final = {"accept", "early_drop", "early_dropped", "early_drop_lost", "staleness_at_turns"}
# Fields at their default then, which the files leave out. Another default holds now.
LEFT_OUT: Final = {"max_unacked_bytes"}
ANSWERS: Final = {"direct-answer.msgpack", "direct-refusal.msgpack"}

a_version = pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)


def read(path: Path) -> Any:
    """A file by the reader that the service or a trainer uses."""
    return read_as(path, path.read_bytes())


def read_as(path: Path, data: bytes) -> Any:
    """Other bytes of the same format."""
    if path.name in ANSWERS:
        return decode_answer(data)
    for head, reader in (
        ("direct-", decode_message),
        ("record-", lambda packed: decode(packed, GroupRecord)),
        ("report", lambda packed: decode(packed, BatchReport)),
        ("trajectory-", decode_trajectory),
    ):
        if path.name.startswith(head):
            return reader(data)
    raise LookupError(f"no reader is named for {path}: add one here")


def plain(path: Path) -> dict[str, Any]:
    """The fields that a file's bytes have, by their names."""
    data = path.read_bytes()
    fields: dict[str, Any] = decode_any(expand(data) if path.suffix == ".bin" else data)
    return fields


def missing(expected: Any, value: Any, place: str = "") -> list[str]:
    """Where a value says something else than is expected. What it says beyond that is not looked at."""
    if isinstance(expected, dict) and isinstance(value, dict):
        return [
            fault
            for name, each in expected.items()
            if name not in GONE | LEFT_OUT
            for fault in (missing(each, value[name], f"{place}.{name}") if name in value else [f"{place} lacks {name}"])
        ]
    if isinstance(expected, list) and isinstance(value, list) and len(expected) == len(value):
        return [
            fault
            for at, pair in enumerate(zip(expected, value, strict=True))
            for fault in missing(*pair, f"{place}[{at}]")
        ]
    return [] if expected == value else [f"{place} is {value!r}, not {expected!r}"]


def expectation(path: Path, name: str) -> Any:
    return msgspec.json.decode((path / name).read_bytes())


def test_every_release_has_its_files() -> None:
    assert "0.1.0" in [path.name for path in VERSIONS]
    assert len(PACKED) >= 18 * len(VERSIONS)


@pytest.mark.parametrize("path", PACKED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_packed_file_says_what_it_said(path: Path) -> None:
    value = read(path)
    assert missing(expectation(path.parent, "expected.json")[path.name], make.whole(value)) == []
    assert value.schema == plain(path).get("schema", FIRST)
    if path.suffix == ".bin":
        check(value)


@pytest.mark.parametrize("path", PACKED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_version_that_the_bytes_name_is_kept_and_a_missing_one_is_1(path: Path) -> None:
    fields = plain(path)
    fields.pop("schema", None)
    for named, expected in (({}, 1), ({"schema": 1}, 1), ({"schema": 2}, 2)):
        data = encode(fields | named)
        assert read_as(path, compress(data) if path.suffix == ".bin" else data).schema == expected


def test_a_record_and_a_report_leave_version_1_out_and_a_trajectory_names_it() -> None:
    """As `docs/reference/direct_path.md` says."""
    [trajectory, *_] = (each.trajectory for each in make.rollouts().values())
    written = [
        decode_any(encode(each)).get("schema") for each in (make.records()["accepted"], make.report(), trajectory)
    ]
    assert written == [None, None, SCHEMA_VERSION]


@a_version
def test_submit_resumes_into_a_file_of_the_release(version: Path, tmp_path: Path) -> None:
    """It knows which groups are whole, and writes none of their samples again."""
    out = tmp_path / "out.jsonl"
    shutil.copy(version / "out.jsonl", out)
    before = out.read_bytes()
    with OutFile(out) as file:
        for path in version.glob("record-*.msgpack"):
            record = decode(path.read_bytes(), GroupRecord)
            assert file.has(record.run_id, record.group_id)
            file.write(record, {})
    assert out.read_bytes() == before


@a_version
def test_export_reads_a_file_of_the_release(version: Path, tmp_path: Path) -> None:
    assert main(["export", str(version / "out.jsonl"), "--out", str(tmp_path / "rows.jsonl")]) == 0
    wanted, rows = (
        [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
        for path in (version / "export.jsonl", tmp_path / "rows.jsonl")
    )
    assert missing(wanted, rows) == []


@a_version
def test_converters_make_the_same_of_a_trajectory_of_the_release(
    version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {
        name: msgspec.structs.replace(
            each, trajectory=decode_trajectory((version / f"trajectory-{name}.bin").read_bytes())
        )
        for name, each in make.rollouts().items()
    }
    monkeypatch.setattr(make, "rollouts", lambda: kept)
    assert missing(expectation(version, "converted.json"), make.whole(make.converted())) == []


@pytest.mark.anyio
@a_version
async def test_the_direct_path_takes_messages_and_results_of_the_release(
    version: Path, settings: RedisSettings, keys: Keys
) -> None:
    """A trainer that has not been upgraded submits; a record that waited over the upgrade is acknowledged."""
    redis, waiting, run = connect(settings), connect(settings), RunRef("default:run")
    store = Store(redis, keys, name="test", waiting=waiting)
    await work.enroll(store, {"sums": Schema(required=("question",), sealed=("answer",))}, None)
    await redis.execute_command("SADD", keys.intakes, run)
    for name in ("submit", "submit-dapo", "configure", "runs", "cancel"):
        await redis.execute_command(
            "XADD", keys.intake(run), "*", "m", (version / f"direct-{name}.msgpack").read_bytes()
        )
    await Intake(store).turn()
    rows = await store.read("XRANGE", keys.results(run), "-", "+")
    assert [(answer.reply, answer.ok) for answer in (decode_answer(fields[1]) for _, fields in rows)] == [
        (reply, True) for reply in ("1", "2", "7", "8", "4")
    ]
    await redis.execute_command("XADD", keys.results(run), "*", "r", (version / "record-failed.msgpack").read_bytes())
    await redis.execute_command("XADD", keys.results(run), "*", "b", (version / "report.msgpack").read_bytes())
    found = await results.collect(store, run)
    assert await results.acknowledge(store, run, [each.cursor for each in found]) == 2
    await redis.aclose()
    await waiting.aclose()


def test_a_field_that_changed_its_meaning_would_be_seen(tmp_path: Path) -> None:
    """The control of the comparison: another default, another value, a list that is shorter."""
    record = make.records()["accepted"]
    expected = make.whole(record)
    assert missing(expected, make.whole(decode(encode(record), GroupRecord))) == []
    for change in ({"carries": 1}, {"samples": record.samples[:2]}, {"verdict": "failed"}):
        assert missing(expected, make.whole(msgspec.structs.replace(record, **change))) != []
