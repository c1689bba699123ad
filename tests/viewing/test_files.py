"""The page's answers over files are those that the service would give; what is no such file is named by its line."""

import json
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from api.viewing.answers import FileAnswers
from api.viewing.sources import source_of
from prorl_mq.archive.shelf import Shelf
from prorl_mq.cli import main
from prorl_mq.cli.export import written
from prorl_mq.cli.kept.archive import exported
from prorl_mq.errors import ConfigurationError, NotFound
from tests.viewing.conftest import GROUPS

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
