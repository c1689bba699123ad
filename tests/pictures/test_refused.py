"""Images for a model that takes none are refused at submission, where the service knows the pools' models."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from prorl_mq.errors import InvalidTask, NoWorkersYet
from prorl_mq.process import tokenizers
from prorl_mq.schema.messages import BatchRequest, Stage
from prorl_mq.service import submit
from prorl_mq.store.server.connection import RedisSettings
from prorl_mq.store.workers import WorkerStatus, living
from tests.payloads.conftest import TENANT, files, queue
from tests.pictures.test_taking import ASKED, batch, known
from tests.support.queue import Queue
from tests.worker.stage import Acting, Named, finish, options, until, working
from workers.stages.registry import Registry

__all__ = ["files", "known", "queue"]
pytestmark = pytest.mark.anyio


async def alive(known: Queue, name: str, sight: str | None, **about: Any) -> None:
    """A RUN worker; one of an older release says nothing of images."""
    told = {"stage": "run", "node": "n1", "slots": 1, "busy": 0, "pid": 1, "started_ms": 1, **about}
    told |= {} if sight is None else {"sight": sight}
    await known.command("HSET", known.keys.worker(name), *(part for pair in told.items() for part in pair))
    await known.command("ZADD", known.keys.workers, 1 << 50, name)


def asked(pool: str = "policy", batch_id: str = "b") -> BatchRequest:
    return msgspec.structs.replace(batch(ASKED, batch_id=batch_id), pool=pool)


@pytest.mark.parametrize(
    ("sight", "pool"), [("-", "policy"), ("-policy +", "policy"), (f"-{TENANT}:policy +policy", "policy")]
)
async def test_a_pool_whose_model_takes_no_images_gets_none_and_nothing_is_written(
    known: Queue, sight: str, pool: str
) -> None:
    await alive(known, "seeing", "+")
    await alive(known, "blind", sight)
    before = await known.command("KEYS", "*")
    with pytest.raises(InvalidTask, match=f"the RUN worker blind has for the pool '{pool}' takes none: submit to"):
        await submit.accept(known.store, TENANT, asked(pool))
    assert sorted(await known.command("KEYS", "*")) == sorted(before)
    text = batch({"prompt": "How are you?"}, batch_id="text")
    assert not (await submit.accept(known.store, TENANT, text)).repeated


async def test_a_worker_that_lacks_the_libraries_is_named_before_anything_is_written(known: Queue) -> None:
    """It would make sandboxes for such jobs, and fail each of them. Its other pools are asked as ever."""
    await alive(known, "bare", "!policy -judge +")
    with pytest.raises(InvalidTask, match=r"worker bare lacks the libraries for them: install prorl-mq\[images"):
        await submit.accept(known.store, TENANT, asked())
    with pytest.raises(InvalidTask, match="takes none"):
        await submit.accept(known.store, TENANT, asked("judge"))
    await submit.accept(known.store, TENANT, asked("other"))


@pytest.mark.parametrize("sight", ["+", "-judge +policy -", f"+{TENANT}:policy -policy -"])
async def test_a_pool_whose_model_takes_them_gets_them(known: Queue, sight: str) -> None:
    """The control. Workers of other stages, and those that drain, are not asked."""
    await alive(known, "seeing", sight)
    await alive(known, "init", None, stage="init")
    await alive(known, "draining", "-", slots=0)
    await submit.accept(known.store, TENANT, asked())


async def test_a_worker_of_an_older_release_is_waited_for(known: Queue) -> None:
    """It would ask without the images. Trainers' clients send the batch again."""
    await alive(known, "old", None)
    with pytest.raises(NoWorkersYet, match="the RUN worker old is of an older release, which asks without them"):
        await submit.accept(known.store, TENANT, asked())
    await known.command("DEL", known.keys.worker("old"))
    await submit.accept(known.store, TENANT, asked())


async def test_a_repeat_is_answered_whatever_models_there_are_now(known: Queue) -> None:
    await submit.accept(known.store, TENANT, asked())
    await alive(known, "blind", "-")
    assert (await submit.accept(known.store, TENANT, asked())).repeated


@pytest.mark.parametrize(
    ("stage", "libraries", "seen"),
    [
        (Stage.RUN, ["PIL"], [True, False, False]),
        (Stage.RUN, ["PIL", "no_such_library"], [False] * 3),
        (Stage.INIT, ["PIL"], [None] * 3),
    ],
)
async def test_a_run_worker_says_which_models_take_images(
    known: Queue,
    settings: RedisSettings,
    stage: Stage,
    libraries: list[str],
    seen: list[bool | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, file in (("text", "tokenizer.json"), ("seeing", "preprocessor_config.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text("{}")
        (tmp_path / name / file).write_text("{}")
    (tmp_path / "models.toml").write_text('[pools.policy]\ntokenizer = "seeing"\n[pools.judge]\ntokenizer = "text"\n')
    monkeypatch.setenv(tokenizers.MODELS, str(tmp_path / "models.toml"))
    monkeypatch.delenv("PRORL_TOKENIZER", raising=False)
    monkeypatch.setattr(tokenizers, "FOR_IMAGES", libraries)
    sign = "+" if libraries == ["PIL"] else "!"
    assert tokenizers.sight({"PRORL_TOKENIZER": str(tmp_path / "seeing")}) == sign
    about = msgspec.structs.replace(options(settings), stage=stage)
    async with working(about, Acting(finish), Registry([Named("sums")])):
        await until(lambda: living(known.store))
        [worker] = await living(known.store)
    found = [worker.sees(each) for each in (f"{TENANT}:policy", f"{TENANT}:judge", f"{TENANT}:other")]
    assert found == seen
    lacking = [worker.lacks_libraries(each) for each in (f"{TENANT}:policy", f"{TENANT}:judge", f"{TENANT}:other")]
    assert lacking == [stage is Stage.RUN and sign == "!", False, False]


def test_no_sign_is_an_older_release() -> None:
    made = WorkerStatus(name="w", stage=Stage.RUN, node="n", slots=1, busy=0, pid=1, started_ms=1)
    assert made.sees("t:policy") is None
