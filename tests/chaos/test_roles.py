"""The users of ops/redis.conf: the pipeline works under them, and each can do no more than its role."""

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from prorl_mq.process import redis_server
from prorl_mq.schema.messages import Stage, Verdict
from prorl_mq.service import submit
from prorl_mq.store.server import acl
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.chaos.test_faults import one_batch
from tests.support.service import acknowledge_all, gather, store_of, until
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

ROLES = {Stage.INIT: "prorl-worker", Stage.RUN: "prorl-worker", Stage.EVAL: "prorl-eval"}

SHARED_OR_OF_ANOTHER_KIND = (  # commands that could stop another tenant, or make a key that no duty can read
    ("SADD", "{prorl}:intakes", "default:r"), ("XADD", "{prorl}:intakes:default", "*", "m", "x"),
    ("XADD", "{prorl}:results:default:r", "*", "r", "forged"), ("SADD", "{prorl}:intake:default:r", "x"),
    ("SADD", "{prorl}:to_cancel:default", "default:r"), ("XDEL", "{prorl}:results:default:r", "1-1"),
    ("SMOVE", "{prorl}:cancellable:default:r", "{prorl}:to_cancel:other", "default:r"),
    ("SMOVE", "{prorl}:runs", "{prorl}:to_cancel:default", "default:r"),
    ("XGROUP", "CREATE", "{prorl}:results:default:any", "g", "0", "MKSTREAM"),
)  # fmt: skip


def as_user(world: World, name: str) -> RedisSettings:
    return RedisSettings(url=world.settings.url, namespace=world.namespace, username=name, password=f"pw-{name}")


def test_the_configuration_holds_the_users_of_the_code() -> None:
    text = redis_server.configuration().read_text()
    for line in acl.lines(tenants=["default"]):
        assert line in text, line


async def test_turns_of_a_fork_are_read_by_workers_and_by_their_own_tenant(world: World) -> None:
    world.start_redis()
    assert world.redis is not None
    await redis_server.answering(world.settings, world.redis, world.directory)
    own, others, copy = "{prorl}:fork:default:r:g", "{prorl}:fork:other:r:g", "{prorl}:job:default:r:g:0"
    read, write = ("HMGET", "saved", "saved_in"), ("HSET", "turns", "x")
    may = [(user, own, read) for user in ("prorl-worker", "prorl-eval", "prorl-viewer", "prorl-trainer-default")]
    may += [("prorl-ingress", own, read), ("prorl-ingress", own, write), ("prorl-worker", copy, write)]
    may_not = [(user, own, write) for user in ("prorl-worker", "prorl-eval", "prorl-viewer", "prorl-trainer-default")]
    may_not += [("prorl-trainer-default", others, read)]
    async with store_of(world) as admin:
        for name in acl.users(tenants=["default"]):
            await admin.redis.execute_command("ACL", "SETUSER", name, "on", f">pw-{name}")
        for user, key, (command, *rest) in [*may, *may_not]:
            said = await admin.redis.execute_command("ACL", "DRYRUN", user, command, key, *rest)
            assert (said == b"OK") is ((user, key, (command, *rest)) in may), (user, command, key, said)


async def test_every_role_does_its_work_and_no_more(world: World) -> None:
    """The answers of a task are readable to EVAL and to the ingress alone."""
    world.start_redis()
    assert world.redis is not None
    await redis_server.answering(world.settings, world.redis, world.directory)
    async with store_of(world) as admin:
        for name in acl.users(tenants=["default"]):
            await admin.redis.execute_command("ACL", "SETUSER", name, "on", f">pw-{name}")
        for kind, name in [("api", "prorl-ingress"), *((stage.value, ROLES[stage]) for stage in Stage)]:
            world.env |= {"PRORL_REDIS_USERNAME": name, "PRORL_REDIS_PASSWORD": f"pw-{name}"}
            if kind == "api":
                world.start_api()
            else:
                world.start_worker(Stage(kind))

        async def known() -> bool:
            return int(await admin.read("ZCARD", admin.keys.workers)) == 3

        await until(known)
        await submit.accept(admin, "default", one_batch("b", 4, 2, run_ms=400))

        async def sealed_there() -> bool:
            return bool(await admin.read("KEYS", admin.keys.sealed("*")))  # type: ignore[arg-type]

        await until(sealed_there)
        [key, *_] = await admin.read("KEYS", admin.keys.sealed("*"))  # type: ignore[arg-type]
        for name in ("prorl-worker", "prorl-viewer", "prorl-trainer-default"):
            await _refused(world, name, "GET", key.decode())
        await _refused(world, "prorl-trainer-default", "EVAL", "return 1", 0)
        await _refused(world, "prorl-trainer-default", "XADD", "{prorl}:intake:other:r", "*", "m", "x")
        await _refused(world, "prorl-trainer-default", "GET", "{prorl}:blob:other:r:g:0:1:trajectory")
        for command in SHARED_OR_OF_ANOTHER_KIND:
            await _refused(world, "prorl-trainer-default", *command)
        await _refused(world, "prorl-viewer", "SET", "{prorl}:job:x", "y")
        await _refused(world, "prorl-worker", "FLUSHALL")
        records = await gather(admin, None, 4, within_s=30)
        assert records, "\n".join(world.log(name)[-1500:] for name in [*world.workers, *world.apis])
        assert [record.verdict for record in records] == [Verdict.ACCEPTED] * 4
        assert await acknowledge_all(admin) == 4


async def _refused(world: World, user: str, *command: str | int) -> None:
    client = connect(as_user(world, user))
    try:
        with pytest.raises((NoPermissionError, ResponseError), match=r"(?i)permission"):
            await client.execute_command(*command)
    finally:
        await client.aclose()
