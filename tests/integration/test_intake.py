"""The direct path: whatever lies on an intake stream is answered once and removed, and never stops it."""

import contextlib
import random
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from prorl_mq.duties import intake as duty
from prorl_mq.duties.intake import Intake
from prorl_mq.process.tracing import Tracing
from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.ids import GroupRef, RunRef
from prorl_mq.schema.intake import IntakeAnswer, IntakeMessage, decode_answer, decode_message
from prorl_mq.schema.items import GroupSpec
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service import submit
from prorl_mq.store import results, work
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, ask, connect
from prorl_mq.store.store import Store

pytestmark = pytest.mark.anyio
RUN = RunRef("default:r")
GROUP = GroupRef("default:r:b-0")
GOOD = {
    "type": "submit",
    "reply": "good",
    "batch": {
        "run_id": "r",
        "batch_id": "b",
        "groups": [{"n": 2, "task": {"task_id": "t", "data_source": "demo", "payload": {"x": 1, "answer": "CANARY"}}}],
    },
}


def with_payload(n: Any = 1, **payload: Any) -> dict[str, Any]:
    task = {"task_id": "t", "data_source": "demo", "payload": payload}
    return {
        "type": "submit",
        "reply": "r11",
        "batch": {"run_id": "r", "batch_id": "b", "groups": [{"n": n, "task": task}]},
    }


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends when its messages are taken, however busy this machine is."""
    monkeypatch.setattr(duty, "PATIENCE_S", 60.0)


@pytest.fixture
async def store(settings: RedisSettings, keys: Keys) -> AsyncIterator[Store]:
    redis, waiting = connect(settings), connect(settings)
    made = Store(redis, keys, name="test", waiting=waiting)
    await work.enroll(made, {"demo": Schema(required=("x",), sealed=("answer",))}, None)
    await redis.execute_command("SADD", keys.intakes, RUN)
    yield made
    await redis.aclose()
    await waiting.aclose()


async def put(store: Store, *fields: str | bytes) -> None:
    await ask(store.redis, "XADD", store.keys.intake(RUN), "*", *fields)


async def answers(store: Store) -> list[IntakeAnswer]:
    rows = await store.read("XRANGE", store.keys.results(RUN), "-", "+")
    return [decode_answer(fields[1]) for _, fields in rows if fields[0] == b"a"]


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


async def test_a_batch_of_the_direct_path_is_traced_where_traces_are_on(store: Store) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, "test")
    await put(store, "m", encode(GOOD))
    await Intake(store, tracing).turn()
    tracing.close()
    [submit] = exporter.get_finished_spans()
    spec = decode(await store.read("GET", store.keys.open(GROUP)), GroupSpec)
    assert submit.name == "submit r:b"
    assert spec.trace is not None
    assert spec.trace.split("-")[2] == f"{submit.get_span_context().span_id:016x}"


async def test_a_good_message_is_carried_out_and_may_come_twice(store: Store) -> None:
    """The second answer says that it was a repeat, and the backlog holds the group once."""
    for _ in range(2):
        await put(store, "m", encode(GOOD))
        await Intake(store).turn()
    first, second = await answers(store)
    assert (first.ok, first.reply, first.value["repeated"]) == (True, "good", False)
    assert (second.ok, second.value["repeated"]) == (True, True)
    assert await store.read("ZCARD", store.keys.backlog(RUN)) == 1
    assert await store.read("XLEN", store.keys.intake(RUN)) == 0


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the entry has no field `m`"),
        (b' {"type": "submit"}', "this is JSON: `m` is MessagePack"),
        (b"not msgpack at all", "cannot be read"),
        (encode({"type": "sumbit", "reply": "r0"}), "unknown type 'sumbit' at $: did you mean 'submit'?"),
        (nested(200_000), "cannot be read"),
        (encode({"type": "submit", "reply": "r1"}), "batch"),
        (encode({"type": "explode", "reply": "r2"}), "explode"),
        (encode({**GOOD, "batch": {**GOOD["batch"], "groups": []}}), "groups"),  # type: ignore[dict-item]
        (encode({**GOOD, "batch": {**GOOD["batch"], "run_id": "other"}}), "other"),  # type: ignore[dict-item]
        (
            encode({**GOOD, "batch": {**GOOD["batch"], "batch_id": "../x"}}),  # type: ignore[dict-item]
            "a name may have letters, digits, _ . -, at most 96 of them at $.batch.batch_id",
        ),
        (encode({"type": "ack", "reply": "r3", "cursors": ["DROP TABLE"]}), "no cursor: take one from a result"),
        (encode({"type": "ack", "reply": "r4", "cursors": 7}), "cursors"),
        (encode({"type": "cancel", "reply": "r5", "kind": "run", "id": "someone-elses"}), "no run"),
        (encode({"type": "cancel", "reply": "r6", "kind": "universe", "id": "r"}), "universe"),
        (encode({"type": "configure", "reply": "r7", "settings": {"weight": 0}}), "weight"),
        (encode({"type": "configure", "reply": "r8", "settings": {"weight": float("nan")}}), "weight"),
        (encode({"type": "configure", "reply": "r9"}), "settings"),
        (encode([1, 2, 3]), "cannot be read"),
        (
            encode({"type": "ack", "reply": "r10", "cursor": ["1-1"]}),
            "unknown field 'cursor' at $: did you mean",
        ),
        (
            encode({**GOOD, "batch": {**GOOD["batch"], "sampling": {"max_tokenz": 5}}}),  # type: ignore[dict-item]
            "unknown field 'max_tokenz' at $.batch.sampling",
        ),
        (encode(with_payload(x=b"\x00")), "a value of type bytes at $.batch.groups[0].task.payload.x"),
        (encode(with_payload(x=[datetime(2026, 1, 1, tzinfo=UTC)])), "a value of type datetime at $.batch.groups[0]"),
        (encode(with_payload(x={"y": float("nan")})), "nan at $.batch.groups[0].task.payload.x.y"),
        (encode(with_payload(x={7: 1})), "the key '7' at $.batch.groups[0].task.payload.x is no text"),
        (encode(with_payload(x=1, n=2.0)), "Expected `int`, got `float` at $.batch.groups[0].n"),
        (encode(with_payload(x=1, n="2")), "Expected `int`, got `str` at $.batch.groups[0].n"),
        (b"\x84\xa4type\xa6cancel\xa5reply\xa1x\xa2id\xa1r\x07\xa1y", "unknown field '7' at $"),
    ],
)
async def test_a_bad_message_is_answered_and_the_next_one_goes_on(store: Store, body: bytes, says: str) -> None:
    """The answer names what is wrong; nothing is stored for the bad message."""
    await put(store, "m", body)
    await put(store, "m", encode(GOOD))
    await Intake(store).turn()
    bad, good = await answers(store)
    assert not bad.ok
    assert bad.status in {404, 422}
    assert says in (bad.error or "")
    assert good.ok
    assert await store.read("ZCARD", store.keys.backlog(RUN)) == 1


@pytest.mark.parametrize("wrong", ["id", "kind", "type"])
async def test_an_answer_is_small_whatever_the_message_quotes(store: Store, wrong: str) -> None:
    """It stays in Redis until the trainer reads it."""
    await put(store, "m", encode({"type": "cancel", "reply": "r0", "kind": "run", "id": "r", wrong: "x" * (1 << 20)}))
    await Intake(store).turn()
    [answer] = await answers(store)
    assert not answer.ok
    assert 20 < len(answer.error or "") <= 2_000


@pytest.mark.parametrize("raised", [TypeError("unhashable type: 'list'"), KeyError("x"), RuntimeError("odd")], ids=repr)
async def test_a_message_that_meets_a_defect_is_answered_and_the_next_one_goes_on(
    store: Store, raised: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The control is below: what is raised on leaves the message where it is, in front of the others."""
    true = submit.accept

    async def accept(*args: Any, **about: Any) -> Any:
        if args[2].batch_id == "bad":
            raise raised
        return await true(*args, **about)

    monkeypatch.setattr(submit, "accept", accept)
    await put(store, "m", encode({**GOOD, "reply": "bad", "batch": {**GOOD["batch"], "batch_id": "bad"}}))  # type: ignore[dict-item]
    await put(store, "m", encode(GOOD))
    await Intake(store).turn()
    bad, good = await answers(store)
    assert (bad.ok, bad.reply, bad.status) == (False, "bad", 500)
    assert f"the service raised {type(raised).__name__}" in (bad.error or "")
    assert good.ok
    assert await store.read("XLEN", store.keys.intake(RUN)) == 0
    assert any(each.exc_info for each in caplog.records), "the log has the traceback"


async def test_a_message_that_meets_an_outage_stays_for_the_next_turn(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise OSError("no route")

    await put(store, "m", encode(GOOD))
    with monkeypatch.context() as patch:
        patch.setattr(submit, "accept", away)
        with contextlib.suppress(OSError):
            await Intake(store).turn()
    assert await answers(store) == []
    await Intake(store).turn()
    [good] = await answers(store)
    assert good.ok


@pytest.mark.parametrize("kind", [["image"], {"a": 1}], ids=repr)
async def test_a_part_of_an_odd_type_stops_no_intake(store: Store, kind: object) -> None:
    odd = [{"role": "user", "content": [{"type": kind}]}]
    await put(store, "m", encode(with_payload(x=1, prompt=odd)))
    await put(store, "m", encode({**GOOD, "batch": {**GOOD["batch"], "batch_id": "next"}}))  # type: ignore[dict-item]
    await Intake(store).turn()
    odd_answer, good = await answers(store)
    assert odd_answer.status in {200, 422}
    assert good.ok


async def test_an_entry_with_other_fields_is_answered(store: Store) -> None:
    await put(store, "hello", "world", "more", "fields")
    await Intake(store).turn()
    [answer] = await answers(store)
    assert (answer.status, answer.error) == (
        422, "the message cannot be read: unknown field 'hello' of the entry: the message is all in `m`"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "says"),
    [(("reply", "r1"), "unknown field 'reply'"), (("m", b"\x80"), "the entry has the field `m` twice")],
)
async def test_a_field_beside_the_message_is_refused(store: Store, more: tuple[str, str | bytes], says: str) -> None:
    """The message is not carried out: what stands beside it was to say something."""
    await put(store, "m", encode(GOOD), *more)
    await Intake(store).turn()
    [answer] = await answers(store)
    assert (answer.status, says in (answer.error or "")) == (422, True)
    assert await store.read("ZCARD", store.keys.backlog(RUN)) == 0


@pytest.mark.parametrize("size", [1, 200_000])
async def test_a_long_message_is_read_beside_the_loop(store: Store, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Three million values took seconds, in which nobody else was served."""
    threads: list[int] = []

    def read(body: bytes, other: bytes | None) -> IntakeMessage:
        threads.append(threading.get_ident())
        return decode_message(body, other)

    monkeypatch.setattr(duty, "decode_message", read)
    await put(store, "m", encode(with_payload(x="x" * size)))
    await Intake(store).turn()
    assert [answer.ok for answer in await answers(store)] == [True]
    assert [each == threading.get_ident() for each in threads] == [size == 1]


async def test_an_unknown_data_source_names_the_nearest(store: Store) -> None:
    task = {"task_id": "t", "data_source": "dmeo", "payload": {"x": 1}}
    await put(store, "m", encode({**GOOD, "batch": {"run_id": "r", "batch_id": "b", "groups": [{"task": task}]}}))
    await Intake(store).turn()
    [answer] = await answers(store)
    assert "did you mean 'demo'" in (answer.error or "")


async def test_mutated_messages_never_stop_the_intake(store: Store) -> None:
    """500 messages with flipped, cut and repeated bytes: each is answered, and the intake is empty after them."""
    rng = random.Random(5)
    original = encode(GOOD)
    for _ in range(500):
        body = bytearray(original)
        for _ in range(rng.randint(1, 6)):
            place = rng.randrange(len(body))
            match rng.randrange(3):
                case 0:
                    body[place] = rng.randrange(256)
                case 1:
                    del body[place:]
                    body += b"\xc1"
                case _:
                    body[place:place] = body[: rng.randrange(8)]
        await put(store, "m", bytes(body))
    intake = Intake(store)
    while await store.read("XLEN", store.keys.intake(RUN)):
        await intake.turn()
    assert len(await answers(store)) == 500


async def test_what_is_sealed_lies_in_sealed_keys_alone(store: Store) -> None:
    """No event, record, group or open payload ever holds the answer."""
    await put(store, "m", encode(GOOD))
    await Intake(store).turn()
    found = []
    for key in await store.read("KEYS", "*"):
        dump = await ask(store.redis, "DUMP", key)
        if b"CANARY" in dump:
            found.append(key.decode())
    assert found == [store.keys.sealed("default:r:b-0")]  # type: ignore[arg-type]


async def test_results_wait_and_resume_by_cursor(store: Store) -> None:
    """Answers on the stream are skipped, and a cursor that is none is refused by name."""
    await put(store, "m", b"junk")
    await Intake(store).turn()
    assert await results.collect(store, RUN, wait_ms=20) == []
    with pytest.raises(Exception, match="no cursor"):
        await results.collect(store, RUN, after="yesterday")
