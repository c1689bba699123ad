"""Steps of an operator's process on a server that it has just started. Each may be repeated."""

from collections.abc import Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from prorl_mq.store.server.connection import ask

Admin = Redis  # a connection of the default user


async def let_in(admin: Admin, user: str, rules: Sequence[str], secret: str) -> None:
    """Gives a user rules and a password, in place of those it had. Source: ACL SETUSER."""
    await ask(admin, "ACL", "SETUSER", user, "reset", *rules, "on", f">{secret}")


async def close_default_user(admin: Admin, secret: str) -> None:
    """The default user needs this password from now on; so the server may listen beyond its own machine."""
    await ask(admin, "CONFIG", "SET", "protected-mode", "no")
    await ask(admin, "ACL", "SETUSER", "default", "resetpass", f">{secret}")


async def listen(admin: Admin, port: int, *, tls: bool) -> str | None:
    """Opens a port. What the server said if it could not, None if it listens."""
    try:
        await ask(admin, "CONFIG", "SET", "tls-port" if tls else "port", port)
    except ResponseError as error:
        return str(error)
    return None


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
