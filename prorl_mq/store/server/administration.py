"""Steps of an operator's process on a server that it has just started. Each may be repeated."""

from collections.abc import Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from prorl_mq.store.server.connection import ask
from prorl_mq.store.server.fitness import info

Admin = Redis  # a connection of the default user


async def let_in(admin: Admin, user: str, rules: Sequence[str], secret: str) -> None:
    """Gives a user rules and a password, in place of those it had. Source: ACL SETUSER."""
    await ask(admin, "ACL", "SETUSER", user, "reset", *rules, "on", f">{secret}")


async def close_default_user(admin: Admin, secret: str) -> None:
    """The default user needs this password from now on, so the server may listen beyond its own machine; as a replica
    it shows the password itself.
    """
    await ask(admin, "CONFIG", "SET", "protected-mode", "no", "masterauth", secret)
    await ask(admin, "ACL", "SETUSER", "default", "resetpass", f">{secret}")


async def listen(admin: Admin, port: int, *, tls: bool) -> str | None:
    """Opens a port. What the server said if it could not, None if it listens."""
    try:
        await ask(admin, "CONFIG", "SET", "tls-port" if tls else "port", port)
    except ResponseError as error:
        return str(error)
    return None


async def follow(admin: Admin, url: str, *, announce: str) -> str | None:
    """Lets the server be a replica of the one at a URL, whose default user has the same password. What the server said
    if it could not. Source: REPLICAOF.
    """
    try:
        await ask(admin, "CONFIG", "SET", "replica-announce-ip", announce)
        await ask(admin, "REPLICAOF", *_address(url))
    except ResponseError as error:
        return str(error)
    return None


async def is_primary(admin: Admin) -> bool:
    return (await info(admin, "replication"))["role"] == "master"


async def has_all(admin: Admin, url: str) -> bool:
    """True for a replica that is linked to the server at a URL, and whose own append-only file begins with all that it
    was sent.
    """
    link, disk = await info(admin, "replication"), await info(admin, "persistence")
    if (link.get("master_host"), link.get("master_port")) != _address(url) or link["master_link_status"] != "up":
        return False
    if disk["loading"] != "0" or disk["aof_enabled"] != "1":
        return False
    rewriting = disk["aof_rewrite_in_progress"], disk["aof_rewrite_scheduled"]
    return rewriting == ("0", "0") and disk["aof_last_bgrewrite_status"] == "ok"


def _address(url: str) -> tuple[str, str]:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return host, port


async def hand_over(admin: Admin, host: str, port: int, *, within_ms: int) -> str | None:
    """Begins a fail-over to a replica: writers wait until it has everything, or the time is over. What the server said
    if it could not. Source: FAILOVER.
    """
    try:
        await ask(admin, "FAILOVER", "TO", host, port, "TIMEOUT", within_ms)
    except ResponseError as error:
        return str(error)
    return None


async def handed_over(admin: Admin) -> bool | None:
    """True when a fail-over that was begun is complete, False when it was given up, None before."""
    about = await info(admin, "replication")
    if about["role"] != "master":
        return True
    return False if about["master_failover_state"] == "no-failover" else None


async def certify(admin: Admin, options: Sequence[str]) -> None:
    """Lets the server read its certificates again: new connections get them, open ones stay. Source: CONFIG SET."""
    await ask(admin, "CONFIG", "SET", *options)


async def answers(redis: Redis) -> bool:
    """True if the server answers a PING and has loaded what it has stored."""
    try:
        await ask(redis, "PING")
    except (RedisError, OSError):
        return False
    return True
