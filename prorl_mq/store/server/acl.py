"""One Redis user for each role, with just the keys and commands that its processes use.

`ops/redis.conf` holds these users for the namespace `prorl`, switched off until they are given a password
(`ACL SETUSER prorl-ingress on >SECRET`). `python -m prorl_mq.store.server.acl [--namespace N] [--tenant T]...` prints
them for any other namespace and for each trainer's tenant.
"""

import argparse
import re
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from prorl_mq.schema import forms
from prorl_mq.settings import NAMESPACE, Setting, add

SETTINGS: Final = (
    replace(NAMESPACE, variable=None),
    Setting("--tenant", "a tenant whose trainer gets a user; may be repeated", metavar="T", again=True),
)
_CONNECT: Final = (
    "+ping +hello +auth +select +client|setname +client|id +info +time +command +cluster|nodes +cluster|keyslot"
)
_TOLD: Final = "+client|tracking"  # of changes to what was read
_KEPT: Final = "+client|no-evict"  # a tenant's connections go first where they fill Redis together
_INGRESS: Final = "+@all -@admin -@dangerous +info +acl|users -script -function"
_WORK: Final = (
    "+evalsha +eval +xreadgroup +xread +xrange +xrevrange +xack +xdel +xadd +xlen +xgroup|create "
    "+xgroup|delconsumer +xinfo|groups +xinfo|stream +xpending +hmget +hset +hget +hgetall +hdel +hincrby +hexists "
    "+hlen +zadd +zrem +zrange +zrangebyscore +zscore +zincrby +zcard +get +mget +set +incrby +decrby +exists "
    "+persist +pexpire +unlink +sadd +smembers +wait"
)
_SHARED_KEYS: Final = (
    "epoch", "mark", "stage:*", "leases", "delayed", "deadlines", "paused", "due", "events", "cancels", "workers",
    "worker:*", "job:*", "group:*", "blob:*", "pool:*", "seats:*", "lanes", "lanes:families", "families", "schemas",
    "bytes:eval", "in_flight", "counters", "breakers", "images", "images:jobs", "duty:image:*", "duty:images",
)  # fmt: skip
_READ_KEYS: Final = ("open:*", "policy:*", "fork:*")
_VIEWED: Final = (
    *_SHARED_KEYS, *_READ_KEYS, "runs", "run:*", "backlog:*", "groups:*", "batch:*", "batches:*", "results:*", "pools",
    "duty:*", "unacked", "settings:*", "reservoir:*", "drawn:*", "parked:*", "carried:*", "dapo", "carrying",
    "paused:*", "archive:*", "archiving", "archive_state", "away:*", "departed:*", "leaving", "arrivals",
)  # fmt: skip
_MIRROR: Final = (
    "+hset +hget +hmget +hgetall +hincrby +hincrbyfloat +rpush +lrange +llen +del +unlink +exists +expire +sadd +srem "
    "+smembers +scard +zadd +zrem +zcard +zscore +zrange +zrangebyscore +zremrangebyrank +xadd +xlen +xrevrange "
    "+evalsha +eval +hdel +multi +exec"
)

_TRAINER: Final = "-trainer-"  # between namespace and tenant, in the name of a user
_TRAINER_READS: Final = (
    "job", "group", "batch", "fork", "run", "backlog", "reservoir", "drawn", "policy", "pool", "blob", "results",
    "intake", "to_cancel",
)  # fmt: skip
_TRAINER_READING: Final = (
    "+xread +xrange +xrevrange +xlen +xpending +xinfo|stream +xinfo|groups +get +mget +exists +hget +hgetall +hmget "
    "+zrank +zscore +zcard +sismember +wait"
)
# What a trainer writes, each command with its keys alone: none of them makes another kind of key than the service
# expects there, and none touches what another tenant uses. None makes a stream or a group: their number has no bound.
_TRAINER_WRITES: Final = (
    ("mark:{}", "+set +pexpire"),
    ("intake:{}:*", "+xadd"),
    ("intakes:{}", "+sadd"),
    ("results:{}:*", "+xreadgroup +xack +xclaim +xautoclaim"),
    ("cancellable:{}:* to_cancel:{}", "+smove"),
)


def users(namespace: str = "prorl", tenants: Sequence[str] = ()) -> dict[str, str]:
    """User name → its rules, without a password and switched off. Raises `ValueError` for a name that Redis would read
    as a pattern or as rules: it opens what is another's.
    """
    for name in (namespace, *tenants):
        if not re.fullmatch(forms.NAME, name):
            raise ValueError(f"{name[:200]!r}: {forms.WORDS[forms.NAME]}")
    prefix = f"{{{namespace}}}:"
    full = " ".join(f"~{prefix}{key}" for key in _SHARED_KEYS)
    readable = " ".join(f"%R~{prefix}{key}" for key in _READ_KEYS)
    viewed = " ".join(f"%R~{prefix}{key}" for key in _VIEWED)
    found = {
        f"{namespace}-ingress": f"~{prefix}* {_CONNECT} {_INGRESS} {_KEPT}",
        f"{namespace}-worker": f"{full} {readable} {_CONNECT} {_KEPT} {_TOLD} {_WORK}",
        f"{namespace}-eval": f"{full} {readable} %R~{prefix}sealed:* {_CONNECT} {_KEPT} {_TOLD} {_WORK}",
        f"{namespace}-viewer": f"{viewed} {_CONNECT} +@read -@dangerous",
        f"{namespace}-mirror": f"~rq:* {_CONNECT} {_MIRROR}",
    }
    for tenant in tenants:
        found[f"{namespace}{_TRAINER}{tenant}"] = _trainer(prefix, tenant)
    return found


def _trainer(prefix: str, tenant: str) -> str:
    reads = " ".join(f"%R~{prefix}{kind}:{tenant}{'' if kind == 'to_cancel' else ':*'}" for kind in _TRAINER_READS)
    writes = []
    for keys, commands in _TRAINER_WRITES:
        patterns = " ".join(f"~{prefix}{key}" for key in keys.format(tenant, tenant).split())
        writes.append(f"({patterns} {commands})")
    return f"%R~{prefix}epoch {reads} {_CONNECT} {_TRAINER_READING} {' '.join(writes)}"


def trainer_of(namespace: str, user: str) -> str:
    """The tenant whose trainer a Redis user is, empty for any other user."""
    start = f"{namespace}{_TRAINER}"
    return user.removeprefix(start) if user.startswith(start) else ""


def lines(namespace: str = "prorl", tenants: Sequence[str] = ()) -> list[str]:
    """The users as lines of a configuration file."""
    return [
        f"user {name} off resetkeys resetchannels -@all {rules}" for name, rules in users(namespace, tenants).items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m prorl_mq.store.server.acl", description=__doc__)
    add(parser, SETTINGS, {})
    given = parser.parse_args(argv)
    try:
        found = lines(given.namespace, given.tenant)
    except ValueError as error:
        parser.error(str(error))
    print("\n".join(found))


if __name__ == "__main__":
    main()
