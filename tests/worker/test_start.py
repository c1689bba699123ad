"""A start that lacks something: one line names it and says what to do, and no attempt is begun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_mq.store.server.connection import RedisSettings
from tests.cli.conftest import command
from tests.sandbox.conftest import TOOLS_DIR, require_apptainer

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.process]
PATHS = "/usr/bin:/bin"


def environment(**more: str) -> dict[str, str]:
    """Without the settings of whoever runs the tests, and with little on PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRORL_")}
    return {**kept, "PATH": PATHS, "PYTHONPATH": os.pathsep.join((str(ROOT), *filter(None, sys.path))), **more}


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """The metadata of a package whose task family needs a library that is not there."""
    metadata = tmp_path / "plugin" / "prorl_lacking-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: prorl-lacking\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[prorl_mq.handlers]\nlacking = a_library_of_its_own.family:Family\n")
    return metadata.parent


NO_APPTAINER = "there is no apptainer in {empty}/apptainer/bin or on PATH: run `prorl-mq install-tools`"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--stage run --tokenizer /nowhere", "--tokenizer /nowhere: there is no such directory"),
        ("--stage run --tokenizer /tmp", "save the policy's tokenizer there"),
        (
            "--stage init --handlers lacking",
            "the handler 'lacking' cannot be loaded: the library a_library_of_its_own is not",
        ),
        ("--stage init --handlers maths", "no handler is called 'maths': did you mean 'math'?"),
        ("--stage init --sandbox apptainer", NO_APPTAINER),
        ("--stage run --sandbox apptainer", NO_APPTAINER),
        ("--stage eval --sandbox bubblwrap", "there is no kind of sandbox 'bubblwrap'"),
    ],
)
def test_a_worker_that_lacks_something_ends_by_a_line_that_names_it(
    redis_server: RedisSettings, plugin: Path, tmp_path: Path, options: str, said: str
) -> None:
    argv = [sys.executable, "-m", "workers", "--redis", redis_server.url, "--state-dir", str(tmp_path / "state")]
    argv += ["--node", "n", "--sandbox", "none", "--handlers", "math", *options.split()]
    env = environment(PRORL_SANDBOX_TOOLS=str(tmp_path / "empty"))
    env["PYTHONPATH"] = os.pathsep.join((str(plugin), env["PYTHONPATH"]))
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    [last] = [line for line in done.stderr.splitlines() if line.startswith("prorl-worker: ")]
    assert said.format(empty=tmp_path / "empty") in last
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)


def first_line(argv: list[str], env: dict[str, str], words: str) -> str:
    """The line of a worker's log in which these words are; the worker is ended then."""
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        try:
            return next(line for line in worker.stderr if words in line)
        finally:
            worker.terminate()


def test_a_worker_whose_image_cannot_be_had_says_so_in_its_first_lines(
    redis_server: RedisSettings, tmp_path: Path
) -> None:
    """It may come: so the worker starts, and jobs that need it wait."""
    require_apptainer()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "apptainer").symlink_to(TOOLS_DIR / "apptainer")
    argv = [sys.executable, "-m", "workers", "--stage", "init", "--redis", redis_server.url, "--sandbox", "apptainer"]
    argv += ["--handlers", "human_eval", "--state-dir", str(tmp_path / "state"), "--node", "n"]
    env = environment(PRORL_SANDBOX_TOOLS=str(tools), PATH=f"{PATHS}:/usr/sbin:/sbin")
    said = first_line(argv, env, "cannot be made here now")
    assert "sandboxes of kind apptainer cannot be made here now, and jobs that need one wait: " in said
    assert "images/base" in said


def test_a_worker_that_waits_for_redis_says_so(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "workers", "--redis", f"unix://{tmp_path}/none"]
    argv += ["--stage", "init", "--sandbox", "none"]
    said = first_line(argv, environment(), "Redis does not answer")
    assert f"{tmp_path}/none" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--tokenizer /nowhere", "prorl-mq up: --tokenizer /nowhere: there is no such directory"),
        ("--local-backend /nowhere", "prorl-mq up: --local-backend /nowhere: there is no such directory"),
        (
            "--sandbox bubblwrap",
            "there is no kind of sandbox 'bubblwrap' (there are apptainer, bubblewrap, local, remote)",
        ),
        ("--sandbox apptainer", "or on PATH: run `prorl-mq install-tools`"),
    ],
)
def test_a_service_that_lacks_something_does_not_start(tmp_path: Path, options: str, said: str) -> None:
    (tmp_path / "s" / "logs").mkdir(parents=True)
    (tmp_path / "s" / "logs" / "keeper.log").write_text("of an earlier start\n")
    argv = command("up", "--port", "0", "--no-dashboard", "--state-dir", tmp_path / "s", *options.split())
    paths = [path for path in os.environ["PATH"].split(os.pathsep) if not Path(path, "apptainer").exists()]
    env = environment(PRORL_SANDBOX_TOOLS=str(tmp_path / "empty"), PATH=os.pathsep.join(paths))
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    told = done.stdout + done.stderr
    assert said in told
    assert "of an earlier start" not in told
    assert (done.returncode in {1, 2}, "Traceback" in told) == (True, False)
