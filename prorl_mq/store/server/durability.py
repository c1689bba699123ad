"""Replicated mode: what a trainer relies on is answered when every replica that may be promoted has it.

A mode of the namespace, kept in the key of its epoch (`acks`: how many replicas must have a write), so that every
process follows it. What needs a confirmation is followed by a mark and WAIT on the connection that carried it. WAIT is
for the newest write of its connection: without the mark a repeat, which writes nothing, would prove nothing. INFO
behind them says whether a replica has come that must be waited for, and, where WAIT is repeated on another connection,
whether that one leads to the same server.

Where the mode says so (`synced`), WAITAOF takes the place of WAIT: the disks of the primary and of its replicas have
it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from prorl_mq.clock import monotonic
from prorl_mq.errors import Unconfirmed
from prorl_mq.store.server.connection import ask_on_one

CONFIRMED: Final = frozenset({
    "ack", "advance", "announce", "answer", "arrive", "close", "configure", "confirm", "depart", "enroll", "ensure",
    "fail", "finish", "fork", "give", "halt", "join", "leave", "log", "pause", "place", "put", "refuse", "release",
    "restore", "resume", "settle", "shelve", "stop", "submit", "switch", "vacate", "wake", "withdraw",
})  # fmt: skip
# Verbs whose loss in a fail-over costs nobody anything: each with the reason.
UNCONFIRMED: Final[Mapping[str, str]] = {
    "admit": "the groups are in the backlog again, and are admitted again",
    "adopt": "the carry-over is there again, and is taken again",
    "assign": "the job holds no backend again; its attempt has one",
    "bury": "the leases end by themselves",
    "claim": "the entry is pending again; its reader has it, and commits by its token",
    "divert": "the entry is pending again, and is diverted by its next reader",
    "draw": "the groups are in the reservoir again, and are drawn again",
    "forget": "the dead worker is forgotten again",
    "hold": "the duty is taken again",
    "observe": "the backend is observed again",
    "open_epoch": "waits by itself: no token of an epoch exists before its opening survives a fail-over",
    "peek": "changes nothing",
    "progress": "the backend is asked again",
    "promote": "the job is delayed again, and is promoted again",
    "reap": "the lease is over again, and the job is taken back again",
    "renew": "the next beat renews it",
    "resign": "the lease of the duty ends by itself",
    "retire_lane": "the lane is empty again, and is retired again",
    "retire_run": "the run is idle again, and is retired again",
    "seat": "the next turn that asks writes it again, and a seat ends by itself",
    "shift_clock": "the jump is seen again",
    "thin": "the consumers are there again, and are thinned again",
    "weigh": "changes nothing",
}
WAIT_MS: Final = 2_000  # of one WAIT; twice the lag at which the primary stops to take writes is two of them
MARK_MS: Final = 30 * 86_400_000  # how long a mark stays that nobody writes
LEAST_S: Final = 2.0  # how long a confirmation is waited for by a caller who has no patience with outages
_FACT: Final = re.compile(rb"^(role|master_replid|connected_slaves):(\w+)", re.MULTILINE)


class Confirmed(NamedTuple):
    """Replies that every replica knows the ground of, and how many replicas must confirm now; 0: none."""

    replies: list[Any]
    acks: int


async def surely(
    redis: Redis, commands: Sequence[Sequence[Any]], *, mark: str, epoch: str, acks: int, within_s: float
) -> Confirmed:
    """Sends commands on one connection, and answers when the replicas have all that the server had done by then.

    Raises `Unconfirmed` after `within_s`, the first error of the commands, and what the client raises: then all of it
    may be sent again.
    """
    give_up = monotonic() + max(within_s, LEAST_S)
    replies: list[Any] = []
    server = b""
    there, synced = True, False
    while True:
        wait_ms = max(1, min(WAIT_MS, int(1000 * (give_up - monotonic()))))
        # A full server refuses SET, and takes another end of a key that is there.
        write = ("PEXPIRE", mark, MARK_MS) if there else ("SET", mark, 1, "PX", MARK_MS)
        wait = ("WAITAOF", 1, acks, wait_ms) if synced else ("WAIT", acks, wait_ms)
        confirmation = (write, wait, ("HMGET", epoch, "acks", "synced"), ("INFO", "replication"))
        answers = await ask_on_one(redis, (*(() if server else commands), *confirmation))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        *first, written, got, (wanted, on_disk), about = answers
        found: dict[bytes, bytes] = dict(_FACT.findall(about))
        if found[b"role"] != b"master" or server not in {b"", found[b"master_replid"]}:
            raise ConnectionError("the primary has changed")
        replies, server = (replies if server else first), found[b"master_replid"]
        wanted = int(wanted or 0)
        acks = wanted and max(wanted, int(found[b"connected_slaves"]))
        there = bool(written)
        own, got = got if synced else (1, got)
        enough, synced = there and own and got >= acks and synced >= bool(on_disk), bool(on_disk)
        if not acks or enough:
            return Confirmed(replies, acks)
        if monotonic() >= give_up:
            how = "have synced" if synced else "have confirmed"
            raise Unconfirmed(
                f"{got} of {acks} replicas {how} it: whether it is lost is unknown, repeat it with the same id"
            )
