"""Routed experts are kept in files: with the trajectory, and for each turn beside its log."""

import random
from typing import Any, cast

import msgspec
import pytest

from prorl_mq.schema.codec import decode_trajectory, encode
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.items import Advance, Claim, Finish, Held
from prorl_mq.schema.messages import Sampling, Stage
from prorl_mq.schema.trajectory import ExpertRoutes, RoutedExperts
from prorl_mq.store.payloads import reading
from prorl_mq.store.payloads.checkpoints import CheckpointArchives
from prorl_mq.store.payloads.files import PayloadFiles
from prorl_mq.store.payloads.name import named_file
from tests.chaos.handler import said
from tests.payloads.conftest import TENANT, under
from tests.support.queue import Queue, spec
from workers.handler import Handler, Ran
from workers.inference.routes import RoutesMissing, RoutesNeedFiles
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.work import Carried, Work

pytestmark = pytest.mark.anyio
ANY: Any = None
OF = RoutedExperts(layers=94, top_k=8, experts=128)
TOKENS = 200  # of the prompt; one is sampled


class Routes:
    """An agent whose trajectory has routes, unless it was told not to keep them."""

    data_sources = (spec().data_source,)

    def __init__(self, *, keeps: bool = True) -> None:
        self.keeps, self.ran = keeps, 0

    async def run(self, _context: Any) -> Ran:
        self.ran += 1
        made = said(200, 0)
        if not self.keeps:
            return Ran(trajectory=made)
        [segment], [turn] = made.segments, made.turns
        data = bytes(1 + each % 127 for each in random.Random(7).randbytes(94 * 8 * TOKENS))
        routes = ExpertRoutes(of=OF, start=0, data=data)
        segment = msgspec.structs.replace(segment, prompt_ids=[1] * TOKENS, routes=routes)
        turn = msgspec.structs.replace(turn, prompt_tokens=TOKENS)
        return Ran(trajectory=msgspec.structs.replace(made, segments=[segment], turns=[turn]))


async def acted(queue: Queue, held: Held, agent: Routes, *, direct: bool = False) -> Any:
    claim = Claim("claimed", held.token, 0, carry=encode(Carried()))
    about = msgspec.structs.replace(spec(), sampling=Sampling(routed_experts=OF), direct=direct)
    stage = RunStage(Registry([cast("Handler", agent)]), None, queue.store, ANY, "n0")
    return await stage.perform(Work(held=held, claim=claim, spec=about))


async def test_the_trajectory_with_its_routes_is_one_file_and_none_of_it_is_in_redis(
    queue: Queue, files: PayloadFiles
) -> None:
    item = (await acted(queue, await queue.hold(Stage.RUN), Routes())).item
    assert isinstance(item, Advance)
    assert named_file(item.trajectory) is not None
    assert len(item.carry) < 1000
    assert len(under(files.directory)) == 1
    read = await reading.get(queue.store, item.held.ref, item.trajectory)
    assert read is not None
    [segment] = decode_trajectory(read).segments
    assert segment.routes is not None
    assert len(segment.routes.data) == TOKENS * 94 * 8


@pytest.mark.parametrize("direct", [False, True])
async def test_where_no_file_can_take_them_nothing_is_sampled(queue: Queue, files: PayloadFiles, direct: bool) -> None:
    agent = Routes()
    if not direct:
        files.directory.rmdir()
    move = await acted(queue, await queue.hold(Stage.RUN), agent, direct=direct)
    assert isinstance(move.item, Finish)
    assert isinstance(move.error, RoutesNeedFiles)
    assert ("over HTTP" if direct else str(files.directory)) in str(move.error)
    assert agent.ran == 0


async def test_without_the_check_they_would_go_into_redis(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the guard."""

    async def passes(_stage: RunStage, _work: Work) -> None:
        pass

    monkeypatch.setattr(RunStage, "_check_room", passes)
    files.directory.rmdir()
    item = (await acted(queue, await queue.hold(Stage.RUN), Routes())).item
    assert isinstance(item, Advance)
    assert named_file(item.trajectory) is None


async def test_a_family_that_keeps_none_ends_as_infrastructure_by_name(queue: Queue) -> None:
    move = await acted(queue, await queue.hold(Stage.RUN), Routes(keeps=False))
    assert isinstance(move.error, RoutesMissing)
    assert move.error.cause is Cause.BACKEND


async def test_the_routes_of_a_turn_are_a_file_that_a_later_attempt_reads(
    queue: Queue, files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives, held = CheckpointArchives(queue.store), await queue.hold(Stage.RUN)
    name = await archives.put_routes(held.ref, b"routes")
    file = named_file(name)
    assert file is not None
    assert await archives.routes(held.ref, name) == b"routes"
    monkeypatch.setattr(reading.get, "__kwdefaults__", {"within_s": 0.1})
    files.remove(TENANT, file)
    assert await archives.routes(held.ref, name) is None
    files.path(TENANT, file).parent.rmdir()
