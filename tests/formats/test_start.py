"""A model that cannot be used is named before any job is: by the worker, by `up` and by `doctor`, in one line."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from prorl_mq.cli import doctor
from prorl_mq.errors import ConfigurationError
from prorl_mq.store.server.connection import RedisSettings
from tests.cli.conftest import command
from tests.worker.test_start import environment, first_line
from workers.agent.hermes import Message
from workers.agent.loading import load_renderer, usable_renderer
from workers.agent.template import NoTools
from workers.agent.tools import TOOLS
from workers.rehearsal.policy import BARE, tokenizer
from workers.stages.registry import load

pytestmark = [pytest.mark.slow, pytest.mark.process]
TOOLS_NAMED = "{% if tools %}{% endif %}"
# It forgets what came before; it writes calls in a form that no format reads; it needs another format.
TEMPLATES = {
    "forgets": BARE.replace("in messages %}", "in messages[-2:] %}"),
    "foreign": BARE.replace(".content +", ".content + (message.tool_calls or '') | string +") + TOOLS_NAMED,
    "none": "",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of tokenizers that each have something wrong."""
    directory = tmp_path_factory.mktemp("models")
    for name, template in TEMPLATES.items():
        made = tokenizer(BARE)
        made.chat_template = template or None
        made.save_pretrained(directory / name)
    (directory / "broken").mkdir()
    (directory / "broken/tokenizer.json").write_text("{}")
    (directory / "broken/tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return directory


def worker(redis: RedisSettings, state: Path, *options: str) -> list[str]:
    argv = [sys.executable, "-m", "workers", "--stage", "run", "--redis", redis.url, "--state-dir", str(state)]
    return [*argv, "--node", "n", "--sandbox", "none", *options]


@pytest.mark.parametrize(
    ("name", "families", "said"),
    [
        ("forgets", "math", r"chat template of forgets is not append-only: .*\. None of the formats .* can use this"),
        ("foreign", "math,swe", r"swebench needs tools: the chat template of foreign writes tool calls in a form that"),
    ],
)
def test_a_worker_does_not_start_with_a_model_that_it_cannot_use(
    redis_server: RedisSettings, models: Path, tmp_path: Path, name: str, families: str, said: str
) -> None:
    argv = worker(redis_server, tmp_path / "state", "--tokenizer", str(models / name), "--handlers", families)
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    [last] = [line for line in done.stderr.splitlines() if line.startswith("prorl-worker: ")]
    assert re.search(said, last), last
    assert f"--tokenizer {models / name}" in last
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)


def test_a_worker_for_families_that_may_do_without_tools_says_that_it_refuses_them(
    redis_server: RedisSettings, models: Path, tmp_path: Path
) -> None:
    argv = worker(redis_server, tmp_path / "state", "--tokenizer", str(models / "foreign"), "--handlers", "math")
    assert "the chat template of foreign" in first_line(argv, environment(), "tasks with tools are refused: ")


def test_up_ends_with_the_line_of_its_worker(models: Path, tmp_path: Path) -> None:
    argv = [*command("up"), "--state-dir", str(tmp_path / "state"), "--sandbox", "none", "--no-dashboard"]
    argv += ["--tokenizer", str(models / "forgets"), "--port", "0"]
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1
    assert "chat template of forgets is not append-only" in done.stderr
    assert "ready after" not in done.stdout


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none", r"none: none has no chat template; put a chat_template\.jinja beside its tokenizer\.json"),
        ("broken", r"broken cannot be loaded \(.*\); save the policy's tokenizer there"),
    ],
)
async def test_a_directory_that_is_no_model_is_named(
    models: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setenv("PRORL_TOKENIZER", str(models / name))
    with pytest.raises(ConfigurationError, match=said) as refused:
        await usable_renderer()
    assert "\n" not in str(refused.value)


@pytest.mark.anyio
async def test_doctor_says_it_and_what_to_do(models: Path) -> None:
    found = await doctor._tokenizer(models / "forgets")
    assert "is not append-only" in found.said
    assert "docs/reference/formats.md" in found.fix


@pytest.mark.anyio
async def test_a_job_with_tools_is_not_tried_again(models: Path) -> None:
    """Another attempt would find the same model; the row is at fault, and it takes no sandbox again."""
    made = await load_renderer(models / "foreign")
    with pytest.raises(NoTools) as refused:
        made.prompt([Message(role="user", content="How many?")], [TOOLS["think"]])
    assert (refused.value.retryable, refused.value.cause) == (False, "row")


def test_the_family_whose_tasks_all_have_tools_is_known() -> None:
    needing: Sequence[str] = load(["swe", "math"]).needing_tools
    assert needing
    assert "math" not in needing
