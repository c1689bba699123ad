"""From a spec to scripts, word for word."""

import os
import shlex
import subprocess
from pathlib import Path

import msgspec
import pytest

import workers.__main__
from slurm import script, spec_file, task

GOLDEN = Path(__file__).parent / "golden"


def rendered(name: str) -> str:
    found = spec_file.read(GOLDEN / f"{name}.toml")
    return "\n".join(f"# ==== {each.name}\n{each.text}" for each in script.scripts(found))


@pytest.mark.parametrize("name", ["small", "whole"])
def test_a_spec_gives_the_same_scripts_as_ever(name: str) -> None:
    """Whoever changes a script sees the change in full: PRORL_WRITE_GOLDEN=1 writes the files again."""
    path = GOLDEN / f"{name}.sh"
    if os.environ.get("PRORL_WRITE_GOLDEN"):
        path.write_text(rendered(name))
    assert rendered(name) == path.read_text()


@pytest.mark.parametrize("name", ["small", "whole"])
def test_every_script_is_valid_shell(name: str) -> None:
    for each in script.scripts(spec_file.read(GOLDEN / f"{name}.toml")):
        subprocess.run(["bash", "-n"], input=each.text, text=True, check=True)


def test_a_further_array_has_as_many_tasks_as_are_asked_for() -> None:
    found = spec_file.read(GOLDEN / "whole.toml")
    assert "#SBATCH --array=0-2%8\n" in script.array_script(found, "node", 3).text


def test_two_deployments_of_one_name_share_no_sandboxes() -> None:
    """Each sweeps its own directory: the jobs of the other are unknown to its Redis."""
    one = spec_file.read(GOLDEN / "small.toml")
    other = msgspec.structs.replace(one, shared="/shared/another")
    places = {
        line
        for each in (one, other)
        for line in script.array_script(each, "node", 1).text.splitlines()
        if "STATE" in line
    }
    assert len(places) == 2


def test_an_option_of_an_array_outranks_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `docs/howto/continue.md` tells for spare slots."""
    monkeypatch.setenv("PRORL_REDIS_URL", "redis://localhost")
    found = spec_file.read(GOLDEN / "whole.toml")
    array = msgspec.structs.replace(found.arrays["node"], options=("--slots 8+4",))
    found = msgspec.structs.replace(found, arrays={"node": array})
    last = script.array_script(found, "node", 1).text.splitlines()[-1]
    argv = shlex.split(last)
    of_task = argv[argv.index("slurm.task") + 1 :]
    for program in task.programs(task.parse(of_task)):
        settings = workers.__main__.parse(program.argv[program.argv.index("workers") + 1 :])
        assert (settings.slots, settings.spare_slots) == (8, 4), settings.stage
