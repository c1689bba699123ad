"""Addresses of Redis: one server, a list of a primary and its replicas, Sentinels that know the primary, or a cluster.

    redis://host:6379/0
    redis://a:6379,b:6379,c:6379/0
    redis+sentinel://s1:26379,s2:26379,s3:26379/NAME/0?sentinel_password=SECRET
    redis+cluster://a:6379,b:6379,c:6379

A cluster is named by some of its nodes: those that are asked which one owns a namespace's slot. `rediss` in place
of `redis` is TLS, also to the Sentinels. What else stands in the query goes to redis-py, such as `ssl_ca_certs`.
"""

import argparse
from typing import Final
from urllib.parse import parse_qsl, urlencode

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.settings import Setting

SENTINEL: Final = "+sentinel"
CLUSTER: Final = "+cluster"
SCHEMES: Final = frozenset({
    "redis", "rediss", "unix", *(f"{each}{form}" for each in ("redis", "rediss") for form in (SENTINEL, CLUSTER)),
})  # fmt: skip
FORMS: Final = (
    "a redis://, rediss:// or unix:// URL, a list redis://HOST:PORT,HOST:PORT, redis+sentinel:// or redis+cluster://"
)
PORT: Final = 6379
SENTINEL_PORT: Final = 26379
OF_SENTINELS: Final = ("sentinel_username", "sentinel_password")  # in the query
Node = tuple[str, int]


class SeveralServers(msgspec.Struct, frozen=True, kw_only=True):
    """Several servers, of which one is the primary. `nodes` are Sentinels where they know it by a `name`; nodes of a
    `cluster` have a primary for each slot.
    """

    nodes: tuple[Node, ...]
    name: str = ""
    cluster: bool = False
    scheme: str = "redis"
    user: str = ""  # with its password, as the URL has it
    database: str = ""
    query: str = ""
    sentinel_user: str | None = None
    sentinel_secret: str | None = None

    def url(self, node: Node) -> str:
        """The URL of one data server."""
        host, port = node
        host = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{self.user}{host}:{port}/{self.database}{'?' if self.query else ''}{self.query}"


def servers(url: str) -> SeveralServers | None:
    """The servers that a URL names; None where it is one, as redis-py reads it. Raises `ConfigurationError`.

    >>> servers("redis://a,b:6380/2").nodes, servers("redis://a,b:6380/2").url(("b", 6380))
    ((('a', 6379), ('b', 6380)), 'redis://b:6380/2')
    >>> servers("redis+sentinel://me:pw@s1,s2,s3/queue").name, servers("redis://a:6379/0")
    ('queue', None)
    """
    scheme, _, rest = url.partition("://")
    hosts = rest.partition("?")[0].partition("/")[0].rpartition("@")[2]
    if scheme not in SCHEMES or scheme == "unix" or not (scheme.endswith((SENTINEL, CLUSTER)) or "," in hosts):
        return None
    return _parsed(url)


def in_cluster(url: str) -> bool:
    """True for the address of a cluster."""
    return url.partition("://")[0].endswith(CLUSTER)


def alone(url: str) -> SeveralServers:
    """One server's URL, to be asked for that of a server beside it; of a Unix socket only that it needs no TLS is kept.

    >>> alone("rediss://me:pw@a:6379/2?ssl_ca_certs=ca.pem").url(("b", 6380))
    'rediss://me:pw@b:6380/2?ssl_ca_certs=ca.pem'
    """
    return SeveralServers(nodes=()) if url.startswith("unix://") else _parsed(url)


def _parsed(url: str) -> SeveralServers:
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    places, _, path = rest.partition("/")
    user, at, hosts = places.rpartition("@")
    named, cluster = scheme.endswith(SENTINEL), scheme.endswith(CLUSTER)
    name, _, database = path.partition("/") if named else ("", "", path)
    if named and not name:
        raise ConfigurationError(
            f"{hidden(url)!r} does not say which primary: end it with the name that Sentinel knows"
        )
    if database and not database.isdigit():
        raise ConfigurationError(f"{hidden(url)!r}: {database!r} is not the number of a database")
    if cluster and int(database or 0):
        raise ConfigurationError(f"{hidden(url)!r}: a cluster has database 0 alone")
    asked = dict(parse_qsl(query))
    found = {each: asked.pop(each, None) for each in OF_SENTINELS}
    return SeveralServers(
        nodes=tuple(_node(each, SENTINEL_PORT if named else PORT, url) for each in hosts.split(",")),
        name=name,
        cluster=cluster,
        scheme=scheme.removesuffix(SENTINEL).removesuffix(CLUSTER),
        user=user + at,
        database=database,
        query=urlencode(asked),
        sentinel_user=found["sentinel_username"],
        sentinel_secret=found["sentinel_password"],
    )


def fault(url: str) -> str:
    """The fault of an address; empty if it has none."""
    if url.partition("://")[0] not in SCHEMES:
        shown = hidden(url) if "://" in url else url.rpartition("@")[2]
        return f"{shown!r} is not {FORMS}"
    try:
        servers(url)
    except ConfigurationError as error:
        return str(error)
    return ""


def with_database(url: str, number: int) -> str:
    """The same servers, another database; what else the URL asks for is left out.

    >>> with_database("redis+sentinel://s1,s2/queue/0", 1), with_database("unix:///s.sock?db=0", 1)
    ('redis+sentinel://s1,s2/queue/1', 'unix:///s.sock?db=1')
    """
    address, _, query = url.partition("?")
    if address.startswith("unix://"):
        return f"{address}?db={number}"
    scheme, _, rest = address.partition("://")
    places, _, path = rest.partition("/")
    name = f"{path.partition('/')[0]}/" if scheme.endswith(SENTINEL) else ""
    kept = urlencode([each for each in parse_qsl(query) if each[0] in OF_SENTINELS])
    return f"{scheme}://{places}/{name}{number}{'?' if kept else ''}{kept}"


def hidden(url: str) -> str:
    """The URL without a password."""
    scheme, _, rest = url.partition("://")
    rest = rest.partition("?")[0]
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _node(text: str, usual: int, url: str) -> Node:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(usual)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"{hidden(url)!r}: {text!r} is not HOST:PORT")
    return host, int(port)


def database(text: str) -> int | str:
    """The number of a database, or the URL of one of a single server."""
    if text.isdecimal():
        return int(text)
    if fault(text) or servers(text) is not None:
        raise argparse.ArgumentTypeError(f"{hidden(text)!r} is no number of a database, and no URL of one server")
    if "@" in text:
        raise argparse.ArgumentTypeError(
            "the user and password belong in PRORL_MIRROR_USERNAME and PRORL_MIRROR_PASSWORD"
        )
    return text


DATABASE: Final = Setting(
    "--database",
    "number of the Redis database for RQ's records; beside a cluster the URL of one, redis://HOST:PORT/N",
    type=database,
    default=1,
    metavar="N",
)
