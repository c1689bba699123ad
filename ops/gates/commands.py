"""Redis commands that a module names: where, which, and by which method they are sent."""

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
