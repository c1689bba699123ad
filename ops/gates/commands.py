"""Redis commands that a module names, and other ways to speak to Redis: where they stand, and by which method."""

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

from ops.gates.tree import Module

SPEAKERS: Final = {"read", "read_many", "wait_read", "ask", "execute_command", "command"}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READS: Final = _words(
    "GET MGET STRLEN EXISTS TYPE TTL PTTL HGET HMGET HGETALL HEXISTS HKEYS HVALS HLEN HSCAN SCARD SISMEMBER SMEMBERS"
    " SSCAN LLEN LRANGE LINDEX ZCARD ZCOUNT ZRANGE ZRANGEBYSCORE ZREVRANGE ZRANK ZSCORE ZMSCORE ZSCAN XLEN XRANGE"
    " XREVRANGE XREAD XPENDING XINFO SCAN KEYS INFO TIME PING DBSIZE WAIT"
)
WRITES: Final = _words(
    "SET SETEX DEL UNLINK EXPIRE PEXPIRE PERSIST RENAME INCR INCRBY DECR APPEND HSET HDEL HINCRBY HSETNX SADD SREM SPOP"
    " LPUSH RPUSH LPOP RPOP BLPOP BRPOP LTRIM LREM ZADD ZREM ZINCRBY ZPOPMIN ZREMRANGEBYSCORE XADD XDEL XACK XTRIM"
    " XGROUP XCLAIM XAUTOCLAIM XREADGROUP PUBLISH EVAL EVALSHA SCRIPT FLUSHALL CONFIG ACL"
)


SENDING: Final = {
    "execute_command", "execute_cluster_pipeline", "pipeline", "read_at_once", "read_many", "register_script",
    "wait_read", "write_many",
}  # fmt: skip
OF_A_STORE: Final = {"call", "read", "redis", "waiting", "write"}  # what a store offers to its own package alone
CLIENT: Final = "redis"  # the name of a client of redis-py
METHODS: Final = frozenset(word.lower() for word in READS | WRITES) | {"delete", "fcall"}
OTHERS_HAVE: Final = _words(  # files, dicts and handlers, of which a name says nothing
    "acl append config delete eval exists expire get info keys ping publish rename scan script set time type unlink"
    " wait"
)
OF_THE_STORE: Final = {"Core", "Redis", "Repeat", "ask", "script"}  # of `prorl_mq.store`, imported by name


class Sent(NamedTuple):
    """`sender`: the method that the command is given to; empty for a tuple, which is sent with others."""

    line: int
    command: str
    sender: str


def commands(module: Module) -> Iterator[Sent]:
    """Commands in calls of `SPEAKERS`, and tuples that begin with one; in those a constant second item is no key."""
    for node in module.nodes:
        match node:
            case ast.Call(func=ast.Name(id=sender) | ast.Attribute(attr=sender), args=given) if sender in SPEAKERS:
                command = next((each.value for each in given[:2] if isinstance(each, ast.Constant)), None)
            case ast.Tuple(elts=[ast.Constant(value=command), second, *_]) if not isinstance(second, ast.Constant):
                sender = ""
            case _:
                continue
        if isinstance(command, str) and command in READS | WRITES:
            yield Sent(node.lineno, command, sender)


def reaches(module: Module) -> Iterator[tuple[int, str]]:
    """Line and words of each way around the store's functions, whatever the command is: by a method, name or import.

    A function of the store may be given its client: `fitness.start_up(store.redis)`.
    """
    given = {id(each) for node in module.nodes if isinstance(node, ast.Call) for each in node.args}
    for node in module.nodes:
        match node:
            case ast.Attribute(value=owner, attr=name) if _sends(_name(owner), name) and id(node) not in given:
                yield node.lineno, f"{_name(owner)}.{name}"
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, *_]) if _name(owner) in {"store", CLIENT}:
                yield node.lineno, f"getattr({_name(owner)}, ...)"
            case ast.ImportFrom(module=str(source), names=names) if source.startswith("prorl_mq.store"):
                yield from ((node.lineno, f"imports {each.name}") for each in names if each.name in OF_THE_STORE)


def _name(node: ast.expr) -> str:
    """The last word of an expression, without the underscore of a private one."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lstrip("_")
        case _:
            return ""


def _sends(owner: str, name: str) -> bool:
    if owner == CLIENT:
        return name in SENDING | METHODS
    return name in SENDING or (owner == "store" and name in OF_A_STORE) or name in METHODS - OTHERS_HAVE
