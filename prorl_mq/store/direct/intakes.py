"""A trainer's side of the intake: messages that an API process takes, and their answers on the run's results.

The service deletes answers, an hour later at the latest.
"""

from typing import Final

from redis.exceptions import NoPermissionError

from prorl_mq.clock import monotonic
from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.ids import BatchRef, RunRef, public, run_ref, tenant_of
from prorl_mq.schema.intake import ANSWER_FIELD, MESSAGE_FIELD, IntakeAnswer, decode_answer
from prorl_mq.store import results
from prorl_mq.store.core import Repeat
from prorl_mq.store.direct import cancellable
from prorl_mq.store.store import Store

BLOCK_MS: Final = 2_000


class Unanswered(RedisUnavailable):
    """No API process took what a trainer asked for in time."""


async def exchange(store: Store, run: RunRef, reply: str, body: bytes, within_s: float) -> IntakeAnswer:
    """Adds a message and waits for its answer. Raises `Unanswered` if none has come in time.

    A message that is sent twice is carried out once: what it asks for may be asked for again.
    """
    after = await results.last_cursor(store, run)
    await _register(store, run)
    await store.write("XADD", store.keys.intake(run), "*", MESSAGE_FIELD, body, repeat=Repeat.SAME)
    return await _answer(store, run, reply, after, within_s)


async def cancel(store: Store, name: RunRef | BatchRef, *, within_s: float) -> IntakeAnswer | None:
    """Asks to cancel a batch or run, also while Redis is full; None where its name cannot be moved (`cancellable`).

    Raises as `exchange` does.
    """
    tenant, run_id, *_ = name.split(":")
    run = run_ref(tenant, run_id)
    after = await results.last_cursor(store, run)
    asked = await cancellable.ask(store, run, name)
    return await _answer(store, run, public(name), after, within_s) if asked else None


async def _register(store: Store, run: RunRef) -> None:
    """In the set of all tenants; a Redis user that may not write to that has one of its tenant."""
    tenant, name = tenant_of(run), public(run)
    try:
        await store.write("SADD", store.keys.intakes, run, repeat=Repeat.SAME)
    except NoPermissionError:
        await store.write("SADD", store.keys.intakes_of(tenant), name, repeat=Repeat.SAME)


async def _answer(store: Store, run: RunRef, reply: str, after: str, within_s: float) -> IntakeAnswer:
    stream, give_up = store.keys.results(run), monotonic() + within_s
    while monotonic() < give_up:
        read = await store.wait_read("XREAD", "BLOCK", BLOCK_MS, "COUNT", 64, "STREAMS", stream, after)
        for entry, fields in read[0][1] if read else ():
            after = entry.decode()
            if fields[0] == ANSWER_FIELD and (found := decode_answer(fields[1])).reply == reply:
                return found
    where = f"on this Redis, in the namespace {store.keys.namespace!r}"
    raise Unanswered(f"no API process has answered within {within_s:g} s: is prorl-api running {where}?")
