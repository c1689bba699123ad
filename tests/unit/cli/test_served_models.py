"""Another model at the address of an evaluation's is noticed while samples are made, and never forgotten."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from prorl_mq.cli.evaluation import models
from prorl_mq.cli.evaluation.models import ModelChanged, ServedModels
from prorl_mq.client import AsyncClient
from prorl_mq.errors import ServiceError
from prorl_mq.evaluation.definition import Definition
from prorl_mq.schema.policy import BackendPolicy, PolicyStatus

pytestmark = pytest.mark.anyio
KEPT = msgspec.json.decode(
    b'{"suite": "s", "pool": "p", "run_id": "r", "priority": 0, "prices": null, "sets": [{"name": "one", "n": 1,'
    b' "solved_at": 1, "weight": 1, "sampling": {}, "limits": {}, "tools": null,'
    b' "tasks": [{"task_id": "t", "digest": "d"}]}]}',
    type=Definition,
)


class Service:
    """What a service answers about a pool: a list of answers, of which the last one stays."""

    def __init__(self, *answers: Mapping[str, str | None] | ServiceError) -> None:
        self.answers = list(answers)

    async def policy(self, pool: str) -> PolicyStatus:
        told = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(told, ServiceError):
            raise told
        backends = [BackendPolicy(address=at, serves=None, step=None, served=name) for at, name in told.items()]
        return PolicyStatus(pool=pool, version=None, mode="keep", weights=None, backends=backends)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "EVERY_S", 0.0)
    monkeypatch.setattr(models, "TRY_S", 0.0)


class Kept:
    """An evaluation's directory."""

    def __init__(self, *answers: Any) -> None:
        self.now = KEPT
        self.served = ServedModels(cast("AsyncClient", Service(*answers)), Path("out"), self._save)

    def _save(self, kept: Definition) -> None:
        self.now = kept


async def test_what_backends_name_is_noted_once_and_more_of_the_same_is_no_stranger() -> None:
    kept = Kept({"http://a": "m"}, {"http://a": "m", "http://b": "m", "http://c": None})
    for _ in range(2):
        await kept.served.check(kept.now)
    await kept.served.look(kept.now)
    assert (list(kept.now.models), list(kept.now.others)) == (["m"], [])


async def test_another_one_is_refused_before_anything_is_sampled() -> None:
    kept = Kept({"http://a": "m"}, {"http://a": "n"})
    await kept.served.check(kept.now)
    with pytest.raises(
        ModelChanged, match="out was begun with m, and http://a serves n: evaluate it under another --out"
    ):
        await kept.served.check(kept.now)
    assert kept.now.others == (), "it may be served again"


async def test_one_that_comes_while_samples_are_made_ends_the_evaluation_for_good() -> None:
    """Samples of both may be in the file, so that the model of before may not continue it either."""
    kept = Kept({"http://a": "m"}, ServiceError("away", status=503), {"http://a": "m"}, {"http://a": "n"})
    await kept.served.check(kept.now)
    with pytest.raises(ModelChanged, match=r"n answered, too, while out was made of m \(http://a serves n\)"):
        await kept.served.watch(lambda: kept.now)
    cast("Any", kept.served)._client.answers = [{"http://a": "m"}]
    with pytest.raises(ModelChanged, match="n answered, too, while out was made of m: evaluate it under another --out"):
        await kept.served.check(kept.now)


async def test_a_backend_that_has_not_been_asked_yet_is_waited_for() -> None:
    kept = Kept({"http://a": "m"}, {"http://a": None}, {}, {"http://a": "n"})
    await kept.served.check(kept.now)
    with pytest.raises(ModelChanged):
        await kept.served.check(kept.now)


async def test_backends_that_name_nothing_stop_nothing() -> None:
    kept = Kept({"http://a": None}, ServiceError("no such pool", status=404), {"http://a": None})
    for _ in range(2):
        await kept.served.check(kept.now)
    await kept.served.look(kept.now)
    assert kept.now == KEPT
