"""Two policies and a judge in one worker: each pool's prompts are rendered by its own model."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from prorl_mq.cli import doctor
from prorl_mq.errors import ConfigurationError
from prorl_mq.process import tokenizers
from prorl_mq.store.server.connection import RedisSettings
from tests.formats.test_start import worker
from tests.worker.test_start import environment
from workers.agent import loading
from workers.agent.hermes import Message
from workers.agent.loading import NoTokenizer, check_pool, load_ahead, policy_renderer, usable_models
from workers.rehearsal.policy import BARE, tokenizer
from workers.stages.registry import Registry

pytestmark = pytest.mark.anyio
FILE = """
[pools.policy]
tokenizer = "one"
[pools.judge]
tokenizer = "two"
template_options = { loud = true }
[pools."ann:judge"]
tokenizer = "three"
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three models, whose templates begin with their names, and a file that gives each pool one."""
    for name in ("one", "two", "three"):
        made = tokenizer(BARE)
        made.chat_template = f"{name}{{{{ '!' if loud else '.' }}}}{BARE}"
        made.save_pretrained(tmp_path / name)
    file = tmp_path / "models.toml"
    file.write_text(FILE)
    monkeypatch.setenv("PRORL_MODELS", str(file))
    monkeypatch.delenv("PRORL_TOKENIZER", raising=False)
    return file


def rewrite(models: Path, text: str) -> None:
    models.write_text(text)
    tokenizers._parsed.cache_clear()


async def checked() -> list[str]:
    """The pools whose models can be used."""
    return [pool async for pool, _ in usable_models()]


async def begins(pool: str) -> str:
    """The beginning of a prompt of a job in a pool, after other jobs had their turn."""
    await load_ahead(pool)
    renderer = await policy_renderer()
    return renderer.text(renderer.prompt([Message(role="user", content="How many?")])).partition("<")[0]


async def test_jobs_of_several_pools_at_once_have_their_own_models(models: Path) -> None:
    pools = ["default:policy", "default:judge", "ann:judge", "bob:judge"] * 3
    found = await asyncio.gather(*(asyncio.create_task(begins(pool)) for pool in pools))
    assert found == ["one.", "two!", "three.", "two!"] * 3


async def test_a_pool_that_the_file_does_not_name_has_the_default_or_an_error_that_names_it(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await load_ahead("default:other")
    with pytest.raises(NoTokenizer, match=r"pool 'other' is not in the file of PRORL_MODELS"):
        await policy_renderer()
    monkeypatch.setenv("PRORL_TOKENIZER", str(models.parent / "three"))
    assert await asyncio.create_task(begins("default:other")) == "three."


async def test_a_model_is_loaded_once_and_the_one_unused_for_longest_makes_room(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_cache", type(loading._cache)())
    monkeypatch.setattr(loading, "MOST", 2)
    assert await checked() == ["policy", "judge", "ann:judge"]
    assert not loading._cache, "checking keeps none in memory"
    first = await asyncio.create_task(_renderer("default:policy"))
    await asyncio.create_task(_renderer("default:judge"))
    assert await asyncio.create_task(_renderer("default:policy")) is first
    await asyncio.create_task(_renderer("ann:judge"))
    assert [Path(key[0]).name for key in loading._cache] == ["one", "three"]


async def _renderer(pool: str) -> object:
    await load_ahead(pool)
    return await policy_renderer()


async def test_a_pool_whose_model_cannot_be_used_is_named_before_any_job(
    models: Path, redis_server: RedisSettings, tmp_path: Path
) -> None:
    made = tokenizer(BARE)
    made.chat_template = "{{ loud }}" + BARE.replace("in messages %}", "in messages[-2:] %}")
    made.save_pretrained(models.parent / "two")
    with pytest.raises(ConfigurationError, match=r"pool judge: .*two is not append-only"):
        await checked()
    assert "pool judge" in (await doctor._tokenizer(None)).said
    argv = worker(redis_server, tmp_path / "state", "--handlers", "math")
    env = {**environment(), "PRORL_MODELS": str(models)}
    done = await asyncio.to_thread(
        subprocess.run, argv, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert "pool judge" in done.stderr
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)


async def test_a_judge_is_checked_for_each_tenant_that_has_one(models: Path) -> None:
    await check_pool("judge")
    await check_pool("ann:judge")
    with pytest.raises(ConfigurationError, match="pool policy2, which a task family asks in EVAL"):
        await check_pool("policy2")
    rewrite(models, FILE.replace("[pools.judge]", "[pools.critic]"))
    await check_pool("judge")  # ann alone has one
    (models.parent / "three" / "tokenizer.json").write_text("{}")
    loading._cache.clear()
    with pytest.raises(ConfigurationError, match="pool ann:judge, which a task family asks in EVAL"):
        await check_pool("judge")


def test_a_family_that_asks_one_pool_names_it_in_a_tuple() -> None:
    class Family:
        data_sources = ("one",)
        asks = "judge"

    with pytest.raises(ConfigurationError, match=r"Family\.asks is a text: write asks = \('judge',\)"):
        _ = Registry([Family()]).asked  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[pools.policy]\ntokenizer = "gone"', "pool policy: tokenizer .*gone: there is no such directory"),
        ('[pools.policy]\ntokeniser = "one"', "tokenizer"),
        ("pools", "models.toml"),
    ],
)
async def test_a_file_that_is_wrong_is_refused(models: Path, text: str, said: str, tmp_path: Path, monkeypatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "models.toml").write_text(text)
    monkeypatch.setenv("PRORL_MODELS", str(other / "models.toml"))
    with pytest.raises(ConfigurationError, match=said):
        await checked()
