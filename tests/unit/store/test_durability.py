"""Which verbs replicated mode confirms, and what a confirmation rests on."""

from typing import Any

import pytest

from prorl_mq.errors import Unconfirmed
from prorl_mq.store import scripts
from prorl_mq.store.server import durability
from prorl_mq.store.server.primary import NamedPrimary
from prorl_mq.store.server.replicas import Replication, SentinelView, faults, standing

pytestmark = pytest.mark.anyio
SERVER = b"a" * 40


def test_every_verb_is_confirmed_or_says_why_not() -> None:
    """A new verb is decided about, once."""
    assert durability.CONFIRMED | set(durability.UNCONFIRMED) == set(scripts.names())
    assert durability.CONFIRMED.isdisjoint(durability.UNCONFIRMED)
    assert all(durability.UNCONFIRMED.values())


def about(role: bytes = b"master", replicas: int = 1, server: bytes = SERVER) -> bytes:
    return b"role:%b\r\nconnected_slaves:%d\r\nmaster_replid:%b\r\n" % (role, replicas, server)


class Answering:
    """A connection that answers confirmations as it was told, and keeps what it was sent."""

    def __init__(self, *answers: list[Any]) -> None:
        self.sent: list[list[str]] = []
        self._answers = list(answers)

    async def __call__(self, _redis: object, commands: Any) -> list[Any]:
        self.sent.append([str(command[0]) for command in commands])
        return self._answers.pop(0)


async def confirmed(monkeypatch: pytest.MonkeyPatch, *answers: list[Any]) -> tuple[durability.Confirmed, Answering]:
    link: Any = Answering(*answers)
    monkeypatch.setattr(durability, "ask_on_one", link)
    monkeypatch.setattr(durability, "LEAST_S", 0.0)
    given: dict[str, Any] = {"mark": "m", "epoch": "e", "acks": 1, "within_s": 5.0 if len(answers) > 1 else 0.0}
    return await durability.surely(link, [("EVALSHA", "x")], **given), link


async def test_the_mark_and_the_wait_come_behind_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    found, link = await confirmed(monkeypatch, [b"stored", b"OK", 1, [b"1", None], about()])
    assert found == durability.Confirmed([b"stored"], 1)
    assert link.sent == [["EVALSHA", "PEXPIRE", "WAIT", "HMGET", "INFO"]]


async def test_a_replica_that_has_come_is_waited_for_and_the_script_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = [b"stored", b"OK", 1, [b"1", None], about(replicas=2)], [b"OK", 2, [b"1", None], about(replicas=2)]
    found, link = await confirmed(monkeypatch, first, second)
    assert found == durability.Confirmed([b"stored"], 2)
    assert link.sent[1] == ["PEXPIRE", "WAIT", "HMGET", "INFO"]


async def test_where_there_is_no_mark_yet_it_is_made_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """PEXPIRE of a key that is not there writes nothing, so WAIT behind it proves nothing."""
    first, second = [b"stored", 0, 1, [b"1", None], about()], [b"OK", 1, [b"1", None], about()]
    found, link = await confirmed(monkeypatch, first, second)
    assert found == durability.Confirmed([b"stored"], 1)
    assert link.sent[1] == ["SET", "WAIT", "HMGET", "INFO"]


async def test_another_server_confirms_nothing_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [b"stored", b"OK", 0, [b"1", None], about()], [b"OK", 1, [b"1", None], about(server=b"b" * 40)]
    with pytest.raises(Exception, match="the primary has changed"):
        await confirmed(monkeypatch, first, second)


async def test_too_few_in_time_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unconfirmed, match="repeat it with the same id"):
        await confirmed(monkeypatch, [b"stored", b"OK", 0, [b"1", None], about()])


async def test_where_disks_must_have_it_replicas_memory_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [b"stored", b"OK", 1, [b"1", b"1"], about()], [b"OK", [1, 1], [b"1", b"1"], about()]
    found, link = await confirmed(monkeypatch, first, second)
    assert found == durability.Confirmed([b"stored"], 1)
    assert link.sent[1] == ["PEXPIRE", "WAITAOF", "HMGET", "INFO"]


@pytest.mark.parametrize("synced", [[0, 1], [1, 0]])
async def test_each_of_both_disks_must_have_it(monkeypatch: pytest.MonkeyPatch, synced: list[int]) -> None:
    first, second = [b"stored", b"OK", 1, [b"1", b"1"], about()], [b"OK", synced, [b"1", b"1"], about()]
    with pytest.raises(IndexError):  # it is asked a third time
        await confirmed(monkeypatch, first, second)


async def test_out_of_replicated_mode_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = await confirmed(monkeypatch, [b"stored", b"OK", 0, [b"0", None], about(replicas=0)])
    assert found == durability.Confirmed([b"stored"], 0)


GOOD = Replication((("h", 1),), guarded=True)
FOLLOWED = "role:master\nconnected_slaves:1\nmin_slaves_good_slaves:1\nslave0:ip=h,port=1,state="
SPARE = Replication((("s", 1),), guarded=True)
NOW = NamedPrimary((2, 0), ("p", 1))
VIEWS = [SentinelView(NOW, 1, False, "")] * 3


def test_a_chain_with_its_sentinels_is_accepted() -> None:
    followed = standing(FOLLOWED + "online,offset=14,lag=0")
    assert faults(followed, followed, VIEWS) == []
    late = SentinelView(NamedPrimary((0, 0), NOW.node), 1, False, "")  # it has just started, and names the same one
    assert faults(GOOD, SPARE, [*VIEWS, late]) == faults(GOOD, SPARE, []) == []


@pytest.mark.parametrize(
    ("primary", "follower", "views", "expected"),
    [
        (Replication((), guarded=True), None, [], "no replica follows the primary"),
        (Replication((("a", 1), ("b", 2)), guarded=True), None, [], "2 replicas follow the primary (a:1, b:2)"),
        (Replication((("a", 1),), guarded=False), SPARE, [], "takes writes without a replica: set min-replicas"),
        (GOOD, None, [], "does not answer this user: it needs the same ACL as the primary, and with TLS a certificate"),
        (GOOD, Replication((), guarded=True), [], "no spare follows the replica"),
        (GOOD, Replication((("s", 1),), guarded=False), [], "would take writes without a replica"),
        (standing(FOLLOWED + "wait_bgsave"), SPARE, [], "a replica still copies what the primary has"),
        (GOOD, standing(FOLLOWED + "online,offset=0"), [], "a spare still copies what the replica has"),
        (GOOD, SPARE, [*VIEWS[:2], None], "1 of 3 Sentinels do not answer"),
        (GOOD, SPARE, VIEWS[:1], "with fewer than 3"),
        (GOOD, SPARE, [*VIEWS, SentinelView(NOW, 1, False, "NOQUORUM 1")], "no quorum: NOQUORUM 1"),
        (GOOD, SPARE, [*VIEWS, SentinelView(NOW, 1, True, "")], "in TILT"),
        (GOOD, SPARE, [*VIEWS, SentinelView(NOW, 0, False, "")], "does not know the replica yet"),
        (GOOD, SPARE, [*VIEWS, SentinelView(NOW, 2, False, "")], "may promote a replica that does not confirm"),
        (
            GOOD,
            SPARE,
            [*VIEWS, SentinelView(NamedPrimary((1, 0), ("old", 1)), 1, False, "")],
            "name different primaries, old:1 and by a later election p:1",
        ),
    ],
)
def test_what_cannot_carry_it_is_refused_with_what_to_do(
    primary: Replication, follower: Replication | None, views: list[SentinelView | None], expected: str
) -> None:
    assert any(expected in each for each in faults(primary, follower, views))


def test_info_says_who_follows_and_whether_writes_are_guarded() -> None:
    text = (
        "role:master\nconnected_slaves:1\nmin_slaves_good_slaves:1\nslave0:ip=10.0.0.2,port=6379,state=online,lag=0\n"
    )
    assert standing(text) == Replication((("10.0.0.2", 6379),), guarded=True)
    assert standing("role:master\nconnected_slaves:0\n") == Replication((), guarded=False)
