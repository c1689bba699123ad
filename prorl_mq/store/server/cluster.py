"""A Redis Cluster as its nodes tell of it. A namespace lies in one slot, so it has one owner and needs no client of its
own: a plain connection to that one, which is looked for again where it answers MOVED.
"""

from typing import Final

from redis.crc import key_slot

from prorl_mq.servers import Node

NODES: Final = ("CLUSTER", "NODES")


def slot_of(namespace: str) -> int:
    """The slot in which every key of a namespace lies: that of its hash tag.

    >>> slot_of("prorl")
    1744
    """
    return key_slot(namespace.encode())


def owner(about: str, slot: int) -> tuple[int, Node] | None:
    """The owner of a slot as CLUSTER NODES names it, with its epoch in the cluster: of two views that with the higher
    one is newer. The host is empty where a node does not know its own. None where the node knows no owner.

    >>> owner("07c3 10.0.0.1:7000@17000,name myself,master - 0 0 3 connected 0-5460 5462 [5461->-e7d1]", 5462)
    (3, ('10.0.0.1', 7000))
    """
    for line in about.splitlines():
        _, address, flags, _, _, _, epoch, _, *slots = line.split(" ")
        if "master" in flags.split(",") and any(_within(each, slot) for each in slots):
            host, _, port = address.partition(",")[0].partition("@")[0].rpartition(":")
            return int(epoch), (host, int(port))
    return None


def splits(about: str, slot: int) -> bool:
    """True if the node that was asked moves a slot key by key, as CLUSTER NODES shows it.

    >>> splits("07c3 10.0.0.1:7000@17000,name myself,master - 0 0 3 connected 5461-5462 [5461->-e7d1]", 5461)
    True
    """
    return f"[{slot}->-" in about or f"[{slot}-<-" in about


def _within(text: str, slot: int) -> bool:
    first, _, last = text.partition("-")
    return not text.startswith("[") and int(first) <= slot <= int(last or first)
