"""What every commit has in common: it is done once, under the job's own token and entry, or it changes nothing."""

from collections.abc import Awaitable, Callable

from prorl_mq.schema.ids import EntryId, JobRef, Token
from prorl_mq.schema.items import Held
from prorl_mq.store.store import Store
from tests.support.queue import Queue
from tests.support.watch import Watch

Commit = Callable[[Store, Held], Awaitable[list[str]]]


async def assert_fenced(queue: Queue, watch: Watch, held: Held, commit: Commit, *, done: str) -> None:
    """`held` is a job that `commit` may commit."""
    store = queue.store
    await watch.look()
    (epoch, _, count), entry = held.token.rpartition("."), held.entry
    wrong = {
        "an older token": held._replace(token=Token(f"{epoch}.0")),
        "a newer token": held._replace(token=Token(f"{epoch}.{int(count) + 1}")),
        "another epoch's token": held._replace(token=Token(f"9-00000000.{count}")),
        "another entry": held._replace(entry=EntryId("1-1")),
    }
    for fault, each in wrong.items():
        assert await commit(store, each) == ["stale"], fault
        await watch.nothing_changed()
    assert await commit(queue.worker("w2").store, held) == ["stale"], "another worker"
    await watch.nothing_changed()
    assert await commit(store, held._replace(ref=JobRef("acme:r:missing:0"))) == ["gone"]
    await watch.nothing_changed()
    assert await commit(store, held._replace(entry=entry)) == [done]
    assert await watch.changes()
    for name, answer in (("w1", "already"), ("w2", "stale")):
        assert await commit(queue.worker(name).store, held) == [answer]
        await watch.nothing_changed()


async def assert_refused_while_stopping(queue: Queue, watch: Watch, held: Held, commit: Commit) -> None:
    """`held` is a job that was told to stop: only `confirm` ends it."""
    await watch.look()
    assert await commit(queue.store, held) == ["stopping"]
    await watch.nothing_changed()
