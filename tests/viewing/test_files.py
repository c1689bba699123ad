"""The page's answers over files are those that the service would give; what is no such file is named by its line."""

import asyncio
import json
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from api.viewing.answers import FileAnswers
from api.viewing.bundle import bundle
from api.viewing.server import viewer
from api.viewing.sources import source_of
from prorl_mq.archive import table
from prorl_mq.archive.folder import Keeping
from prorl_mq.archive.shelf import Shelf
from prorl_mq.archive.table import ArchiveDamaged
from prorl_mq.cli import main
from prorl_mq.cli.export import written
from prorl_mq.cli.kept.archive import exported
from prorl_mq.duties.archiving.writer import GroupWriter
from prorl_mq.errors import ConfigurationError, NotFound
from prorl_mq.schema.ids import run_ref
from tests.viewing.conftest import GROUPS, group

ROOT = Path(__file__).parents[2]


def asked(path: Path, place: str, **query: str) -> Any:
    return msgspec.to_builtins(FileAnswers(source_of(path)).answer(place.split("/"), query))


def forms(samples: Path, archive: Path) -> list[Path]:
    """The same groups as a file of samples, as both exports, and as an archive."""
    rows = samples.with_name("rows.jsonl"), samples.with_name("rows.parquet")
    for out in rows:
        written(
            exported(Shelf(archive, "prorl"), "default", "r", damaged=lambda error: pytest.fail(str(error))), out, None
        )
    return [samples, *rows, archive, archive / "prorl" / "default" / "r"]


def test_every_form_shows_the_same_groups_samples_and_tokens(samples: Path, archive: Path) -> None:
    for path in forms(samples, archive):
        assert asked(path, "runs") == {"runs": [{"run_id": "r", "groups": 3}]}, path
        page = asked(path, "runs/r/groups", batch="b", limit="2")
        rest = asked(path, "runs/r/groups", batch="b", after=page["next"])
        names = [each["group_id"] for each in (*page["groups"], *rest["groups"])]
        assert sorted(names) == ["g0", "g1", "g2"], path
        assert rest["next"] is None
        view = asked(path, "groups/r:g1")
        rewards = [(each["job_id"], each["record"]["reward"]) for each in view["samples"]]
        assert rewards == [("r:g1:0", 1.0), ("r:g1:1", 0.0)]
        [first, second] = GROUPS[1].trajectories["r:g1:0"].segments
        tokens = asked(path, "jobs/r:g1:0/tokens", segment="0", start="1")
        assert (tokens["ids"], tokens["logprobs"], tokens["total"]) == ([4, 5], [first.logprobs[1], None], 3)
        outline = asked(path, "jobs/r:g1:0/turns")
        assert [turn["versions"] for turn in outline["turns"]] == [["3", "4"], []]
        call = outline["turns"][0]["tool_calls"][0]
        assert call["name"] == "bash"
        # An export has no result that no token stands for.
        assert call["result"]["text"] == ("" if path.stem == "rows" else "a\nb\n"), path
        assert asked(path, "jobs/r:g1:1/timeline")["status"]["note"] == "it said nothing"
        assert second.opened_by == outline["segments"][1]["opened_by"]


def test_what_is_not_there_is_not_found(samples: Path) -> None:
    for place in ("groups/r:none", "jobs/r:g0:9/turns", "jobs/r:g0:1/turns", "jobs/odd/turns", "overview"):
        with pytest.raises(NotFound):
            asked(samples, place)


def test_a_line_that_is_no_sample_is_named(samples: Path) -> None:
    lines = samples.read_text().splitlines()
    for wrong, why in (('{"job_id": 1}', "Expected `str`"), ("{", "truncated"), ('{"run_id": "r"}', "missing")):
        samples.write_text("\n".join([*lines[:2], wrong, *lines[2:]]))
        with pytest.raises(ConfigurationError, match=rf"out\.jsonl:3 is neither a sample .*{why}"):
            source_of(samples)


def test_a_last_line_that_is_still_being_written_is_left_out(samples: Path) -> None:
    whole = samples.read_text()
    samples.write_text(whole[:-40])
    assert [each["job_id"] for each in asked(samples, "groups/r:g2")["samples"]] == ["r:g2:0"]
    samples.write_text(whole[:-40] + "\n")  # whoever ended that line has written something else
    with pytest.raises(ConfigurationError, match=r"out\.jsonl:6 is neither"):
        source_of(samples)


@pytest.mark.parametrize(
    ("field", "odd"), [("run_id", "../../x"), ("run_id", ""), ("group_id", "a/b"), ("group_id", "a:b")]
)
def test_a_name_that_no_address_can_have_is_refused_with_its_line(samples: Path, field: str, odd: str) -> None:
    lines = samples.read_text().splitlines()
    samples.write_text("\n".join([lines[0], json.dumps(json.loads(lines[1]) | {field: odd}), *lines[2:]]))
    with pytest.raises(ConfigurationError, match=r"out\.jsonl:2: .* is no name of a run or a group"):
        source_of(samples)


def changed(path: Path, number: int, **fields: Any) -> None:
    lines = path.read_text().splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | fields)
    path.write_text("\n".join(lines) + "\n")


def test_a_group_that_cannot_be_made_hides_no_other(
    samples: Path, archive: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A list, a bundle: each ended for all groups, the latter with a traceback."""
    _, rows, _, _, _ = forms(samples, archive)
    whole = json.loads(samples.read_text().splitlines()[2])["trajectory"]
    for path, odd in (
        (samples, {"trajectory": whole | {"segments": []}}),
        (samples, {"job_id": "elsewhere"}),
        (rows, {"reward_parts": "{"}),
        (rows, {"messages": [{"role": "assistant", "content": "", "tool_calls": "[{}]", "reasoning": ""}]}),
    ):
        before = path.read_bytes()
        changed(path, next(at for at, line in enumerate(before.splitlines()) if b'"r:g1:0"' in line), **odd)
        caplog.clear()
        found = asked(path, "runs/r/groups")["groups"]
        assert [each["group_id"] for each in found if each["group_id"] != "g1"] == ["g0", "g2"], odd
        if len(found) == 2:  # a message that no turn shows is none's fault
            assert f"{path.name}:" in caplog.text
            with pytest.raises(ArchiveDamaged, match="group 'g1' cannot be read"):
                asked(path, "groups/r:g1")
        bundle(source_of(path), tmp_path / "made")
        shutil.rmtree(tmp_path / "made")
        path.write_bytes(before)


@pytest.mark.anyio
async def test_what_cannot_be_read_any_more_is_named_on_the_page(samples: Path) -> None:
    transport = httpx.ASGITransport(viewer(source_of(samples)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:80") as client:
        changed(samples, 0, job_id="elsewhere")
        damaged = await client.get("/v1/groups/r:g0")
        await asyncio.to_thread(samples.unlink)
        gone = await client.get("/v1/groups/r:g1")
    assert (damaged.status_code, gone.status_code) == (503, 503)
    assert "out.jsonl:2 is neither a sample" in damaged.json()["detail"]  # lines lie elsewhere now
    assert f"{samples.name}:3: group 'g1' cannot be read: FileNotFoundError" in gone.json()["detail"]


def test_a_damaged_file_of_an_archive_hides_its_own_groups_alone(archive: Path, tmp_path: Path) -> None:
    writer = GroupWriter(Shelf(archive, "prorl"))
    writer.write(run_ref("default", "r"), [group("g3")], Keeping(days=30, bytes=1 << 30), now_ms=2, data="mark")
    first, second = sorted((archive / "prorl" / "default" / "r").glob("*.parquet"))
    whole = first.read_bytes()
    first.write_bytes(whole[:200])
    table.footer.cache_clear()
    assert [each["group_id"] for each in asked(archive, "runs/r/groups")["groups"]] == ["g3"]
    first.write_bytes(whole)
    table.footer.cache_clear()
    assert len(asked(archive, "runs/r/groups")["groups"]) == 4
    data = bytearray(second.read_bytes())
    data[4:600] = bytes(596)  # the footer, and with it the list, stays
    second.write_bytes(data)
    assert "6 trajectories without 1 group that" in bundle(source_of(archive), tmp_path / "made")
    first.unlink()
    second.write_bytes(data[:100])
    with pytest.raises(ConfigurationError, match="no file of an archive that can be read"):
        source_of(archive)


def test_what_is_nothing_of_ours_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "odd.parquet").write_bytes(b"PAR1 not")
    (tmp_path / "folder").mkdir()
    for name, why in {"empty.jsonl": "holds no", "odd.parquet": "is no export", "folder": "has no file"}.items():
        with pytest.raises(ConfigurationError, match=rf"{name} {why}"):
            source_of(tmp_path / name)
    assert main(["view", str(tmp_path / "nothing.jsonl")]) == 2
    assert "nothing.jsonl is not there: give a file of samples" in capsys.readouterr().err


def test_archives_of_two_tenants_are_told_apart(archive: Path) -> None:
    (archive / "prorl" / "other" / "r").mkdir(parents=True)
    [file] = (archive / "prorl" / "default" / "r").glob("*.parquet")
    (archive / "prorl" / "other" / "r" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ConfigurationError, match="2 tenants: give one of them"):
        source_of(archive)
    assert asked(archive / "prorl" / "other", "runs")["runs"] == [{"run_id": "r", "groups": 3}]


@pytest.mark.process
def test_the_command_serves_the_page_on_loopback_until_it_is_interrupted(samples: Path) -> None:
    argv = [str(Path(sys.executable).parent / "prorl-mq"), "view", str(samples)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 60)[0]
        found = re.search(r"(http://127\.0\.0\.1:\d+)/ui/ until Ctrl-C", process.stdout.readline())
        assert found is not None
        with httpx.Client(base_url=found[1], trust_env=False) as client:
            page = client.get("/ui/")
            assert 'content="files"' in page.text
            assert "script-src 'self'" in page.headers["content-security-policy"]
            assert client.get("/ui/app.js").status_code == 200
            assert client.get("/v1/groups/r%3Ag0").json()["summary"]["mean"] == 0.5
            assert client.get("/v1/groups/r%3Anone").status_code == 404
            assert client.get("/v1/jobs/r%3Ag0%3A0/turns?after=x").json()["detail"].startswith("after is 'x'")
            assert client.get("/v1/runs", headers={"host": "evil.example"}).status_code == 421
            assert client.post("/v1/runs").status_code == 405
    finally:
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0


@pytest.mark.process
@pytest.mark.parametrize("command", ["view", "doctor"])
def test_a_folder_of_the_users_own_is_not_taken_for_the_service(samples: Path, tmp_path: Path, command: str) -> None:
    """Their `api`, `workers` or `sandbox` ran instead of ours: whoever left a folder of samples chose what runs."""
    for name in ("api", "workers", "sandbox"):
        (tmp_path / "own" / name).mkdir(parents=True)
        (tmp_path / "own" / name / "__init__.py").write_text("raise SystemExit('it was run')")
    program = str(Path(sys.executable).parent / "prorl-mq")
    words = {"view": [str(samples), "--bundle", str(tmp_path / "out")], "doctor": ["--state-dir", str(tmp_path)]}[
        command
    ]
    about: Any = {"cwd": tmp_path / "own", "env": {"PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    ended = subprocess.run([program, command, *words], check=False, **about)
    assert "it was run" not in ended.stdout + ended.stderr
    assert command != "view" or (ended.returncode, ended.stderr) == (0, "")
    control = subprocess.run([sys.executable, "-m", "api.viewing"], check=False, **about)
    assert "it was run" in control.stderr


def test_the_archive_is_listed_pruned_and_exported_by_command(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, out = tmp_path / "state", tmp_path / "rows.jsonl"
    (state / "redis").mkdir(parents=True)
    archive.rename(state / "redis" / "archive")

    def said(*words: object, code: int = 0) -> str:
        assert main(["archive", *map(str, words), "--state-dir", str(state)]) == code
        found = capsys.readouterr()
        return found.err if code else found.out

    [run] = json.loads(said("ls", "--json"))
    assert (run["tenant"], run["run"], run["files"]) == ("default", "r", 1)
    assert "default  r        1" in said("ls")
    assert [each["group_id"] for each in json.loads(said("ls", "r", "--json"))] == ["g2", "g1", "g0"]
    assert "g2     b      t     accepted        2  0.500  0.500" in said("ls", "r")
    assert json.loads(said("prune", "--json")) == {"files": 0, "bytes": 0}
    assert said("export", "r", "--out", out) == f"9 rows are in {out} (jsonl)\n"
    assert len(out.read_text().splitlines()) == 9
    assert said("export", "other:q", "--out", tmp_path / "x.jsonl", code=2) == (
        "prorl-mq archive: the archive has no run 'q' of tenant 'other'; it has default:r\n"
    )
    assert "say which run" in said("export", code=2)
    (state / "redis" / "archive").rename(tmp_path / "away")
    assert "there is no archive" in said("ls", code=2)
