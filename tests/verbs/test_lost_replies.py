"""A reply that is lost on its way: the verb is sent again, and what it does has happened once."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.schema.ids import BatchRef
from prorl_mq.schema.items import Ack, Advance, Fail, Finish, Lane, Logged, Reap, Stop
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.schema.task_schema import Schema
from prorl_mq.store import work
from prorl_mq.store.layout.keys import GROUP as GROUP_NAME
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.scripts import names, script
from prorl_mq.store.server.connection import RedisSettings, connect, patiently
from prorl_mq.store.store import renewal
from tests.support.proxy import LossyProxy, lossy
from tests.support.queue import LINGER_MS, POOL, RUN, Queue, lease_of, record
from tests.support.state import Naming, look
from tests.verbs import reserved
from tests.verbs.lost import CASES, Act, case
from tests.verbs.places import GROUP, JOB
from tests.verbs.reserved import BATCH
from tests.verbs.test_adopt import carried
from tests.verbs.test_close import over
from tests.verbs.test_settle import due

pytestmark = pytest.mark.anyio

for module in sorted(Path(__file__).parent.glob("test_*.py")):
    if module.stem != Path(__file__).stem:
        import_module(f"tests.verbs.{module.stem}")  # a verb's own test may declare its case


@case("submit", ["already"])
async def _(queue: Queue) -> Act:
    batch, group = queue.new()
    return lambda q: q.store.submit(batch, [group])


@case("admit", [-1])
async def _(queue: Queue) -> Act:
    await queue.submit()
    wanted = await queue.wanted(GROUP)
    return lambda q: q.store.admit(RUN, [wanted])


@case("configure", None)
async def _(_queue: Queue) -> Act:
    return lambda q: q.store.configure(RUN, b"{}")


@case("claim", ["already"])
async def _(queue: Queue) -> Act:
    await queue.admitted()
    entries = await queue.read(Stage.INIT)

    async def act(q: Queue) -> list[str]:
        return [claim.status for claim in await q.claim(Stage.INIT, entries)]

    return act


@case("divert", ["already"])
async def _(queue: Queue) -> Act:
    await queue.admitted()
    entries = await queue.read(Stage.INIT)
    return lambda q: q.store.divert(Lane(Stage.INIT), entries, ["sums"])


@case("renew", [b"held"])
async def _(queue: Queue) -> Act:
    held = await queue.hold(Stage.RUN)

    async def act(q: Queue) -> Any:
        made = renewal(q.keys, "w1", {"stage": "run"}, [lease_of(held)], lease_ms=1_000)
        return await q.store.call("renew", made.keys, made.arguments)

    return act


@case("advance", ["already"])
async def _(queue: Queue) -> Act:
    held = await queue.hold(Stage.RUN)
    blob = await queue.blob(held)
    return lambda q: q.store.advance([Advance(held, None, b"c", blob, 100)])


@case("release", ["already"])
async def _(queue: Queue) -> Act:
    held = await queue.hold(Stage.RUN)
    return lambda q: q.store.release([held])


@case("fail", ["already"])
async def _(queue: Queue) -> Act:
    held = await queue.hold(Stage.RUN)
    return lambda q: q.store.fail([Fail(held, Stage.INIT, 1_000, "it broke")])


@case("finish", ["already"])
async def _(queue: Queue) -> Act:
    held = await queue.hold(Stage.EVAL)
    return lambda q: q.store.finish([Finish(held, Outcome.COMPLETED, record(JOB))])


@case("stop", ["already"])
async def _(queue: Queue) -> Act:
    held = await queue.hold(Stage.RUN)
    stop = Stop(JOB, record(JOB, Outcome.CANCELLED), queue.keys.stage(held.stage))
    return lambda q: q.store.stop(Verb.CANCEL, [stop])


@case("confirm", "already")
async def _(queue: Queue) -> Act:
    held = await queue.hold(Stage.RUN)
    await queue.store.stop(Verb.CANCEL, [Stop(JOB, b"", queue.keys.stage(held.stage))])
    return lambda q: q.store.confirm(held, record(JOB, Outcome.CANCELLED))


@case("assign", [b"already", b"http://b2", b"about it"])
async def _(queue: Queue) -> Act:
    held = await queue.hold(Stage.RUN)
    await queue.store.join(POOL, "http://b2", b"about it")
    return lambda q: q.store.assign(held, exclude=["http://b1"])


@case("log", ["already"])
async def _(queue: Queue) -> Act:
    held = await queue.hold(Stage.RUN)
    return lambda q: q.store.log([Logged(held, 0, b"said")])


@case("reap", ["stale"])
async def _(queue: Queue) -> Act:
    held = await queue.hold(Stage.RUN)
    await queue.overdue(JOB)
    item = Reap(JOB, held.token, held.entry, queue.keys.stage(Stage.RUN), Stage.INIT, POOL)
    return lambda q: q.store.reap(Verb.REAP, State.QUEUED, [item])


@case("promote", ["stale"])
async def _(queue: Queue) -> Act:
    await queue.fail(await queue.hold(Stage.RUN))
    await queue.backed_off(JOB)
    return lambda q: q.store.promote([(JOB, q.keys.stage(Stage.INIT))])


@case("settle", "already")
async def _(queue: Queue) -> Act:
    await queue.finish(await queue.hold(Stage.EVAL))
    verdict = await due(queue)
    return lambda q: q.store.settle(verdict, linger_ms=LINGER_MS)


@case("ack", ["already"])
async def _(queue: Queue) -> Act:
    await queue.finish(await queue.hold(Stage.EVAL))
    await queue.settle()
    [result] = await queue.results()
    item = Ack(result.cursor, GROUP, BatchRef(f"{RUN}:b"), [], len(result.record), admitted=True)

    async def act(q: Queue) -> list[str]:
        return await q.store.ack(RUN, [item])

    return act


@case("withdraw", [0])
async def _(queue: Queue) -> Act:
    await queue.submit()
    return lambda q: q.withdraw(GROUP)


@case("put", None)
async def _(queue: Queue) -> Act:
    held = await queue.hold(Stage.RUN)
    return lambda q: q.store.put(q.keys.blob(held.ref, held.token, "trajectory"), b"tokens", ttl_ms=60_000)


@case("join", "known")
async def _(_queue: Queue) -> Act:
    return lambda q: q.store.join(POOL, "http://b1", b"about it")


@case("leave", "unknown")
async def _(queue: Queue) -> Act:
    await queue.hold(Stage.RUN)
    return lambda q: q.store.leave(POOL, "http://b1", reason="died", drain=False)


@case("observe", [b"observed"])
async def _(queue: Queue) -> Act:
    await queue.hold(Stage.RUN)
    return lambda q: q.store.observe(POOL, "http://b1", was="", breaker="1 0 0 0 0", facts={"version": "7"})


@case("announce", "already")
async def _(_queue: Queue) -> Act:
    return lambda q: q.store.announce(POOL, 7, "keep", "/weights/7")


@case("progress", "noted")
async def _(queue: Queue) -> Act:
    await queue.store.announce(POOL, 7, "keep", "/weights/7")

    async def act(q: Queue) -> str:
        announcement = await q.command("HGET", q.keys.policy(POOL), "id")
        return await q.store.progress(POOL, announcement.decode(), "http://b1", b"loaded")

    return act


@case("forget", "forgotten")
async def _(queue: Queue) -> Act:
    await queue.finish(await queue.hold(Stage.INIT))
    await queue.command("ZADD", queue.keys.workers, 1, "w1")
    return lambda q: q.store.forget("w1", [q.keys.stage(Stage.INIT)])


@case("hold", "held")
async def _(_queue: Queue) -> Act:
    return lambda q: q.store.hold("admit", lease_ms=60_000)


@case("open_epoch", 2)
async def _(queue: Queue) -> Act:
    await queue.command("HSET", queue.keys.epoch, "server", "another")

    async def act(q: Queue) -> Any:
        return int((await q.store.open_epoch()).partition("-")[0])

    return act


@case("switch", "already")
async def _(queue: Queue) -> Act:
    await queue.store.hold("admit", lease_ms=60_000)
    return lambda q: q.store.switch(seen="2", to="3")


@case("shift_clock", "moved")
async def _(_queue: Queue) -> Act:
    return lambda q: q.store.shift_clock(seen_ms=0, offset_ms=7, jumped=True, lease_ms=60_000)


@case("ensure", 0)
async def _(_queue: Queue) -> Act:
    keys = {"consumers": GROUP_NAME, "name": ""}

    async def act(q: Queue) -> Any:
        lane = q.keys.stage(Stage.RUN, "n9")
        return await patiently(lambda: script("ensure")(q.redis, [lane], keys), outage_ms=5_000)

    return act


@case("enroll", "enrolled")
async def _(_queue: Queue) -> Act:
    return lambda q: work.enroll(q.store, {"sums": Schema(open_ended=True)}, "n9")


@case("retire_lane", "retired")
async def _(_queue: Queue) -> Act:
    return lambda q: q.store.retire_lane("n1")


@case("retire_run", "retired")
async def _(queue: Queue) -> Act:
    await queue.store.configure(RUN, b"{}")
    return lambda q: q.store.retire_run(RUN, idle_ms=-60_000)


@case("resign", "not held")
async def _(queue: Queue) -> Act:
    await queue.store.hold("admit", lease_ms=60_000)
    return lambda q: q.store.resign("admit")


@case("answer", "already")
async def _(queue: Queue) -> Act:
    entry = await queue.command("XADD", queue.keys.intake(RUN), "*", "m", b"a message")
    return lambda q: q.store.answer(RUN, entry.decode(), b"the answer")


@case("place", "a")
async def _place(_: Queue) -> Act:
    return lambda q: q.store.place(RUN, "a")


@case("peek", [[1, -1, 0, None]])
async def _(queue: Queue) -> Act:
    await queue.command("SET", queue.keys.intake(RUN), "no stream")
    return lambda q: q.store.peek([RUN], limit=1, most_bytes=1 << 20, room_bytes=1 << 20)


@case("weigh", [b"1-1", 10])
async def _(queue: Queue) -> Act:
    await queue.command("XADD", queue.keys.intake(RUN), "1-1", "m", b"a message")
    return lambda q: q.store.weigh(RUN)


@case("draw", -1)
async def _(queue: Queue) -> Act:
    refs = await reserved.submit(queue, "g")
    return lambda q: q.store.draw(BATCH, BATCH, dict.fromkeys(refs, BATCH), drawn=0)


@case("adopt", 0)
async def _(queue: Queue) -> Act:
    await carried(queue, "g")
    return lambda q: q.store.adopt(reserved.NEXT, {GROUP: BATCH})


@case("wake", 0)
async def _(queue: Queue) -> Act:
    await reserved.finished(queue, *await reserved.drawn(queue, "g"))
    await reserved.park(queue, GROUP)
    return lambda q: q.store.wake(BATCH, [GROUP])


@case("halt", "already")
async def _(queue: Queue) -> Act:
    await reserved.drawn(queue, "g")
    return lambda q: q.store.halt(BATCH, "target", carry=True, keep_ms=60_000)


@case("close", "already")
async def _(queue: Queue) -> Act:
    await over(queue)
    return lambda q: q.store.close(BATCH, b"the report", groups=1)


@pytest.fixture
async def proxied(settings: RedisSettings) -> AsyncIterator[tuple[LossyProxy, Queue]]:
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        async with lossy(settings, Path(name)) as (proxy, through):
            client = connect(through)
            for verb in names():
                await client.execute_command("SCRIPT", "LOAD", script(verb).text)
            yield proxy, Queue(client, Keys("lost"))
            await client.aclose()


def test_every_verb_has_a_case() -> None:
    assert set(CASES) == set(names())


@pytest.mark.parametrize("verb", names())
async def test_the_effect_happens_once_and_the_repeat_is_answered_so(
    verb: str, queue: Queue, proxied: tuple[LossyProxy, Queue]
) -> None:
    """The same is done in two namespaces, in one of them with a lost reply: both end in the same state."""
    proxy, through = proxied
    prepare, expected = CASES[verb]
    await (await prepare(queue))(queue)
    plain = Queue(queue.redis, through.keys)
    await plain.prepare("n1")
    act = await prepare(plain)
    proxy.lose(verb)
    async with asyncio.timeout(60):
        assert await act(through) == expected
    assert proxy.lost == 1
    there, here = await look(queue.redis, through.keys), await look(queue.redis, queue.keys)
    assert Naming()(there) == Naming()(here)


@pytest.mark.parametrize("verb", ["advance", "finish"])
async def test_a_reply_may_be_lost_again_and_again(verb: str, queue: Queue, proxied: tuple[LossyProxy, Queue]) -> None:
    proxy, through = proxied
    plain = Queue(queue.redis, through.keys)
    await plain.prepare()
    act = await CASES[verb].prepare(plain)
    proxy.lose(verb, times=3)
    assert await act(through) == ["already"]
    assert proxy.lost == 3
