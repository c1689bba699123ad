"""What is wrong with a spec is said at once, all of it, with the word that was meant."""

import math
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.errors import ConfigurationError
from slurm import spec_file
from slurm.spec import Deployment
from slurm.tasks import limit_s

ROOT = Path(__file__).parents[3]


def deployment(**tables: Any) -> Deployment:
    return spec_file.deployment({"name": "d", "shared": "/s", **tables})


def faults(**tables: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        deployment(**tables)
    return [line.removeprefix("the spec: ") for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"arays": {}}, "unknown field 'arays' at $: did you mean 'arrays'?"),
        (
            {"arrays": {"n": {"kind": "node", "coutn": 2}}},
            "unknown field 'coutn' at $.arrays.n: did you mean 'count'?",
        ),
        ({"defaults": {"partitoin": "x"}}, "unknown field 'partitoin' at $.defaults: did you mean 'partition'?"),
        ({"redis": {"urll": "x"}}, "unknown field 'urll' at $.redis: did you mean 'url'?"),
        ({"arrays": {"n": {"kind": "nodes"}}}, "Invalid enum value 'nodes' at $.arrays[...].kind"),
        (
            {"arrays": {"n": {"kind": "run", "sbatch": ["--array=0-9"]}}},
            "'--array=0-9' is set by 'count and throttle': write it there at $.arrays.n.sbatch",
        ),
        (
            {"arrays": {"n": {"kind": "run", "sbatch": ["-t 5"]}}},
            "'-t 5' is set by 'time': write it there at $.arrays.n.sbatch",
        ),
        (
            {"arrays": {"n": {"kind": "run", "time": "02:00", "warn_s": 120}}},
            "warn_s is 120, which is not less than the time 02:00 at $.arrays.n",
        ),
        (
            {"arrays": {"n": {"kind": "run", "least": 3}}},
            "least is 3, more than most, 1 at $.arrays.n",
        ),
        *(
            (
                {"redis": {}, "backends": {name: {"command": ["x"]}}},
                f"{name!r} is the name of the deployment's own job at $.backends: rename the backend",
            )
            for name in ("api", "redis", "watch")
        ),
        ({"arrays": {"redis": {"kind": "run"}}}, "'redis' names two jobs at $.arrays: rename the array"),
        (
            {"redis": {}, "backends": {"b": {"command": ["x"], "others": ["y"]}}},
            "others is the command of further nodes, and nodes is 1 at $.backends.b",
        ),
        (
            {"redis": {}, "backends": {"b": {"command": ["x"], "nodes": 2, "sbatch": ["-N 3"]}}},
            "'-N 3' is set by 'nodes of a backend': write it there at $.backends.b.sbatch",
        ),
        ({"backends": {"b": {"command": ["x"]}}}, "backends need to know where Redis is: add a table [redis]"),
    ],
)
def test_a_fault_is_named_with_its_place(tables: dict[str, Any], said: str) -> None:
    assert said in faults(**tables)


def test_a_line_cannot_smuggle_in_a_second_one() -> None:
    for value in ("a\n#SBATCH --qos=high", "a\n", "a\rb"):
        assert faults(arrays={"n": {"kind": "run", "sbatch": [value]}})
        assert faults(defaults={"partition": value})


def test_profile_defaults_and_job_add_up(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[defaults]\npartition = "p"\ntime = "10:00"\nsetup = ["one"]\n')
    (tmp_path / "other.toml").write_text('[defaults]\npartition = "q"\n')
    (tmp_path / "c.toml").write_text(
        'name = "d"\nshared = "s"\nprofile = "site.toml"\n[defaults]\nsetup = ["two"]\ntime = "20:00"\n'
        '[arrays.a]\nkind = "run"\nsetup = ["three"]\n'
    )
    array = spec_file.read(tmp_path / "c.toml").arrays["a"]
    assert (array.partition, array.time, array.setup) == ("p", "20:00", ("one", "two", "three"))
    assert spec_file.read(tmp_path / "c.toml", tmp_path / "other.toml").arrays["a"].partition == "q"
    assert spec_file.read(tmp_path / "c.toml").shared == str(tmp_path / "s")


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml cannot be read: No such file"):
        spec_file.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(ConfigurationError, match=r"bad\.toml is not valid TOML"):
        spec_file.read(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("01:30:00", 5400), ("10:00", 600), ("1-12:00", 129_600), ("2-00:00:30", 172_830), ("90", 5400), ("1-12", 129_600),
     ("1000:00", 60_000), ("UNLIMITED", math.inf), ("0", math.inf)],
)  # fmt: skip
def test_a_time_limit_is_read_as_slurm_reads_it(limit: str, seconds: float) -> None:
    assert limit_s(limit) == seconds
    array = {"kind": "run", "time": limit}
    assert deployment(arrays={"a": array}).arrays["a"].time == limit


@pytest.mark.parametrize("limit", ["", "1:00:00:00", "1-", "-5", "tomorrow", "5m", "1-00:00\n"])
def test_what_slurm_does_not_read_is_refused(limit: str) -> None:
    assert any("time" in fault for fault in faults(arrays={"a": {"kind": "run", "time": limit}}))


def test_the_examples_are_valid() -> None:
    for path in sorted((ROOT / "examples" / "slurm").glob("*.toml")):
        if path.name != "site.toml":
            assert spec_file.read(path).arrays
