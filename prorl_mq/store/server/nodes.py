"""Single servers of a chain on this machine, data servers and Sentinels: each is asked by itself, whatever its role."""

from typing import Any, Final, NamedTuple

from prorl_mq.schema.rendezvous import Place
from prorl_mq.store.server.primary import ask_node, pairs

HOST: Final = "127.0.0.1"
# Not saved by a Sentinel: how often it asks, and how long it does nothing after its clock has jumped. Its ping-period
# stays: a replica whose INFO is older than five of them is not promoted, and INFO comes once a second at most.
TUNED: Final = ("info-period", "1000", "publish-period", "500", "tilt-period", "3000")


class SentinelFacts(NamedTuple):
    """Facts that a Sentinel knows: the primary's port, its replicas and the other Sentinels."""

    port: int
    replicas: int
    others: int


class ChainNode:
    """One server by its port. Every call raises what the client raises."""

    def __init__(self, port: int, secret: str) -> None:
        self.host = HOST
        self.port = port
        self.scheme = "redis"
        self.query = ""  # of its URL, as a client's certificates
        self._secret = secret

    async def ask(self, *command: str) -> Any:
        """One command, sent once; raises an error that the server answers."""
        place = Place(url=f"{self.scheme}://{self.host}:{self.port}{self.query}", secret=self._secret)
        [reply] = await ask_node(place.url, command, place=place)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def ping(self) -> None:
        await self.ask("PING")

    async def follow(self, leader: "ChainNode") -> None:
        """Makes it a replica of another server, if it is not one already."""
        if f"master_port:{leader.port}\r" not in await self._replication():
            await self.ask("REPLICAOF", leader.host, str(leader.port))

    async def linked(self) -> bool:
        """True if it has what its primary had, and follows it."""
        return "master_link_status:up" in await self._replication()

    async def epoch(self, key: str) -> int:
        """The number of the epoch that it knows; 0 without one."""
        return int(await self.ask("HGET", key, "number") or 0)

    async def seen(self, name: str) -> SentinelFacts:
        """Facts that a Sentinel knows."""
        about = pairs(await self.ask("SENTINEL", "MASTER", name))
        return SentinelFacts(int(about["port"]), int(about["num-slaves"]), int(about["num-other-sentinels"]))

    async def forget(self, name: str) -> None:
        """Lets a Sentinel look again for the primary's replicas."""
        await self.ask("SENTINEL", "RESET", name)

    async def tilted(self) -> bool:
        """True for a Sentinel that promotes nobody since its clock has jumped. Set back, it is blind for as long."""
        return b"sentinel_tilt:1" in await self.ask("INFO", "sentinel")

    async def tune(self) -> None:
        """Lets a Sentinel look more often than it does by default."""
        await self.ask("SENTINEL", "DEBUG", *TUNED)

    async def _replication(self) -> str:
        about: bytes = await self.ask("INFO", "replication")
        return about.decode()
