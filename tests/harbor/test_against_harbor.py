"""Our reader against Harbor's own, field by field: `make harbor` installs that."""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.harbor.tasks import TOML, toml, write
from tests.sandbox.conftest import TOOLS_DIR
from workers.handlers.harbor.reading import BadTask, read_task

HARBOR = TOOLS_DIR / "harbor" / "bin" / "python"
EXAMPLES = sorted(path.parent for path in (Path(__file__).parents[2] / "examples/harbor").glob("*/task.toml"))
READ = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from harbor.models.task.task import Task
from harbor.utils.env import resolve_env_vars
for name in sys.argv[1:]:
    try:
        task = Task(Path(name))
        config = task.config
        filled = [resolve_env_vars(each) for each in (config.verifier.env, config.solution.env, config.environment.env)]
        told = {"name": task.name, "instruction": task.instruction, "env": filled}
        told["config"] = config.model_dump(mode="json")
    except Exception as error:
        told = {"error": str(error)}
    print(json.dumps(told))
"""
TASKS = {
    "the least": TOML,
    "nothing but an image": '[environment]\ndocker_image = "a"\nworkdir = "/app"\n',
    "old spellings": 'version = "1.0"\n[environment]\ndocker_image = "a"\nworkdir = "/a"\nmemory = "1.5G"\n'
    'storage = "2048K"\n'
    "allow_internet = false\n",
    "a name": toml("task", 'name = "org/task"\nversion = "3"\nkeywords = ["a"]\nauthors = [{name = "A"}]'),
    "metadata": toml("metadata", 'difficulty = "hard"\nnested = {a = [1, 2.5, true]}'),
    "resources": toml("environment", "cpus = 2\nmemory_mb = 512\nstorage_mb = 100\nbuild_timeout_sec = 5"),
    "times": toml("agent", "timeout_sec = 12.5") + "[verifier]\ntimeout_sec = 3\n",
    "variables": toml("environment", 'env = {A = "${HOME}", B = "${NOT_HERE:-b:-c}", C = "a${HOME}", D = "${E:-}"}'),
    "health": toml("environment.healthcheck", 'command = "true"\nretries = 1\nstart_period_sec = 2'),
    "artifacts": toml("", 'artifacts = ["/out/a", {source = "/out/b", destination = "c", exclude = ["*.o"]}]'),
    "a separate verifier": toml("verifier", 'environment_mode = "separate"\ncollect = [{command = "x"}]'),
    "an image of the verifier's": toml("verifier", 'environment = {docker_image = "v", memory = "1G"}'),
    "hosts": toml("environment", 'network_mode = "allowlist"\nallowed_hosts = ["a.org", "b.org"]')
    + '[verifier]\nnetwork_mode = "no-network"\n',
    "hosts of the agent's": toml("agent", 'network_mode = "allowlist"\nallowed_hosts = ["a.org"]'),
    "an offline phase": toml("verifier", 'network_mode = "no-network"') + '[agent]\nnetwork_mode = "no-network"\n',
}  # fmt: skip
BROKEN = {
    "no TOML": "a =",
    "a wrong type": toml("agent", 'timeout_sec = "soon"'),
    "a wrong network": toml("environment", 'network_mode = "wifi"'),
    "hosts without a mode": toml("agent", "allowed_hosts = []"),
    "hosts in another mode": toml("environment", 'network_mode = "no-network"\nallowed_hosts = ["a.org"]'),
    "a host that is none": toml("agent", 'network_mode = "allowlist"\nallowed_hosts = ["a.org:1"]'),
    "two sizes": toml("environment", 'memory = "2G"\nmemory_mb = 5'),
    "shared and not": toml("verifier", 'environment_mode = "shared"\nenvironment = {docker_image = "a"}'),
    "an artifact above": toml("", 'artifacts = ["/a/../b"]'),
    "an unset variable": toml("environment", 'env = {A = "${NOT_HERE}"}'),
    "no tests": TOML,
}


def harbor_reads(*directories: Path) -> list[dict[str, Any]]:
    if not HARBOR.exists():
        pytest.skip("Harbor is not installed: run `make harbor`")
    done = subprocess.run([HARBOR, "-c", READ, *directories], check=True, capture_output=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()]


def we_read(directory: Path) -> dict[str, Any]:
    task = read_task(directory)
    solution = dict(task.solution.environment) if task.solution else {}
    row = {name: value for name, value in task.row.environment.items() if name in task.config.environment.env}
    return {
        "name": task.name,
        "instruction": task.row.instruction,
        "config": msgspec.to_builtins(task.config),
        "env": [dict(task.hidden.environment), solution, row],
    }


def test_every_field_of_the_examples_is_as_harbor_reads_it() -> None:
    assert [we_read(path) for path in EXAMPLES] == harbor_reads(*EXAMPLES)


def test_every_field_of_every_kind_of_task_is_as_harbor_reads_it(tmp_path: Path) -> None:
    paths = [write(tmp_path / name.replace(" ", "-"), {"task.toml": text}) for name, text in TASKS.items()]
    texts = ["# canary GUID x\n\nhello\n", "\n<!-- CANARY -->\n\nhello", "hello\n"]
    paths += [write(tmp_path / f"text-{at}", {"instruction.md": text}) for at, text in enumerate(texts)]
    assert [we_read(path) for path in paths] == harbor_reads(*paths)


def test_whatever_harbor_refuses_we_refuse(tmp_path: Path) -> None:
    paths = {}
    for name, text in BROKEN.items():
        files = {"task.toml": text, **({"tests/test.sh": ""} if name == "no tests" else {})}
        paths[name] = write(tmp_path / name.replace(" ", "-"), files)
    assert [name for name, told in zip(paths, harbor_reads(*paths.values()), strict=True) if "error" not in told] == []
    for path in paths.values():
        with pytest.raises(BadTask):
            read_task(path)
