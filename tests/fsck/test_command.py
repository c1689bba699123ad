"""`prorl-mq fsck` on a live server, on copies of its files, and where it cannot look."""

import json
import shutil
from pathlib import Path

import pytest

from prorl_mq.cli import main
from prorl_mq.cli.arguments import parse
from prorl_mq.cli.local import fsck
from prorl_mq.service.fsck.look import look
from prorl_mq.store.server.connection import RedisSettings
from tests.support.queue import Queue

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing moves here, so that no lease has to pass between two looks."""
    monkeypatch.setattr(fsck, "LEASE_MS", 0)


async def checked(*words: object) -> int:
    """The exit code."""
    return await fsck.run(parse(["fsck", "--namespace", "t", *map(str, words)]))


async def directory(queue: Queue) -> Path:
    """Where the server keeps its files."""
    return Path((await queue.command("CONFIG", "GET", "dir"))[1].decode())


async def test_a_live_server_without_a_violation(
    busy: Queue, settings: RedisSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await checked("--redis", settings.url) == 0
    assert capsys.readouterr().out.endswith("13 open groups, 8 jobs, 1 results\n")


async def test_a_violation_is_a_line_with_its_number_and_what_to_do(
    busy: Queue, settings: RedisSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    await busy.command("ZINCRBY", busy.keys.pool("policy"), 1, "http://b1")
    assert await checked("--redis", settings.url) == 1
    line, last = capsys.readouterr().out.splitlines()
    assert line.startswith("invariant 24: {t}:pool:policy: http://b1: 3 jobs are counted on it, and 2 hold it; stop")
    assert last.startswith("1 violations in ")


async def test_what_a_second_look_does_not_see_is_no_violation(
    busy: Queue, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is a single look."""

    async def corrected(_seconds: float) -> None:
        await busy.command("DEL", busy.keys.prefix + "strange")

    await busy.command("SET", busy.keys.prefix + "strange", 1)
    assert len((await look(busy.store)).violations) == 1
    monkeypatch.setattr("prorl_mq.service.fsck.look.asyncio.sleep", corrected)
    assert await checked("--redis", settings.url) == 0


async def test_an_rdb_file_is_judged_as_json(busy: Queue, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await busy.command("SET", busy.keys.prefix + "strange", 1)
    await busy.command("SAVE")
    shutil.copy(await directory(busy) / "dump.rdb", tmp_path / "copy.rdb")
    before = (tmp_path / "copy.rdb").read_bytes()
    assert await checked(tmp_path / "copy.rdb", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert [(each["number"], each["key"]) for each in report["violations"]] == [(26, "{t}:strange")]
    assert (report["groups"], report["jobs"], report["results"]) == (13, 8, 1)
    assert (tmp_path / "copy.rdb").read_bytes() == before


async def test_an_append_only_directory_is_judged(
    busy: Queue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(await directory(busy) / "appendonlydir", tmp_path / "kept")
    assert await checked(tmp_path / "kept") == 0
    assert "13 open groups, 8 jobs, 1 results" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "no RDB"])
def test_where_it_cannot_look_the_exit_code_is_2(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    assert main(["fsck", str(path)]) == 2
    assert main(["fsck", "--redis", f"unix://{tmp_path}/none.sock"]) == 2
    assert str(path) in capsys.readouterr().err
