"""DAPO batches through a real queue, with workers and duties stepped by hand."""

from collections.abc import AsyncIterator

import pytest

from prorl_mq.duties.sweep import Janitor
from prorl_mq.schema.codec import decode_any, encode
from prorl_mq.schema.dapo import Accuracy, Dapo, Reservoir, Surplus
from prorl_mq.schema.ids import GroupRef
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.store import results
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.queue import RUN
from tests.support.sampler import RUN_ID, Sampler, group, prompts

pytestmark = pytest.mark.anyio
GOOD, RIGHT, WRONG = (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)


@pytest.fixture
async def sampler(settings: RedisSettings, keys: Keys) -> AsyncIterator[Sampler]:
    redis = connect(settings)
    made = Sampler(redis, keys)
    await made.prepare()
    yield made
    await redis.aclose()


async def by_name(sampler: Sampler) -> dict[str, GroupRecord]:
    return {each.group_id: each for each in await sampler.records()}


async def test_a_batch_is_filled_with_groups_whose_rewards_differ(sampler: Sampler) -> None:
    """And every prompt gets one record, those that were never drawn too; the report counts them all."""
    names = [f"g{number}" for number in range(12)]
    await sampler.submit("b", prompts(*names), Dapo(target_groups=2, oversample=1.0, surplus=Surplus.CANCEL))
    await sampler.calm()
    assert await sampler.names(sampler.queue.keys.drawn("acme:r:b")) == names[:4]  # two missing at a rate of one half
    await sampler.finish_group("g0", *WRONG)
    await sampler.finish_group("g1", *RIGHT)
    await sampler.finish_group("g2", *GOOD)
    await sampler.calm()
    assert (await sampler.verdicts()) == {"g0": "filtered", "g1": "filtered", "g2": "accepted"}
    assert await sampler.names(sampler.queue.keys.drawn("acme:r:b")) == ["g3", "g4", "g5"]  # one missing at 5 of 11
    await sampler.finish_group("g4", *GOOD)
    await sampler.calm()
    verdicts = await sampler.verdicts()
    assert [name for name in names if verdicts[name] == "accepted"] == ["g2", "g4"]
    assert {verdicts[name] for name in ("g3", *names[5:])} == {"cancelled"}
    report = (await sampler.reports())["b"]
    assert (report.reason, report.drawn, report.accepted.count, report.cancelled.count) == ("target", 6, 2, 8)
    assert (report.filtered_right.count, report.filtered_wrong.count) == (1, 1)
    assert (report.acceptance_rate, report.accepted.tokens) == (0.5, 40)
    assert report.bias == ["surplus=cancel: groups that end early are accepted more often"]


async def test_a_batch_without_prompts_left_is_exhausted(sampler: Sampler) -> None:
    await sampler.submit("b", prompts("g0", "g1"), Dapo(target_groups=2))
    await sampler.calm()
    await sampler.finish_group("g0", *GOOD)
    await sampler.finish_group("g1", *WRONG)
    await sampler.calm()
    assert (await sampler.reports())["b"].reason == "exhausted"
    assert await sampler.verdicts() == {"g0": "accepted", "g1": "filtered"}


async def test_max_groups_ends_a_batch_whose_prompts_are_hopeless(sampler: Sampler) -> None:
    names = [f"g{number}" for number in range(6)]
    await sampler.submit("b", prompts(*names), Dapo(target_groups=2, oversample=1.0, max_groups=3))
    await sampler.calm()
    for name in names[:3]:
        await sampler.finish_group(name, *RIGHT)
    await sampler.calm()
    report = (await sampler.reports())["b"]
    assert (report.reason, report.drawn, report.cancelled.count) == ("exhausted", 3, 3)
    assert (await by_name(sampler))["g5"].reason == "not needed: its batch is complete without it"


async def test_what_a_full_batch_leaves_goes_on_into_the_next_one(sampler: Sampler) -> None:
    """Running jobs run on, a finished sample stays, a finished group counts at once, in the order of the draws."""
    keys = sampler.queue.keys
    await sampler.queue.store.announce("acme:policy", 7, "keep", "")
    await sampler.submit("b1", prompts(*(f"g{n}" for n in range(6))), Dapo(target_groups=1, oversample=2.0))
    await sampler.calm()
    await sampler.finish(sampler_job("g1", 0), 1.0)
    await sampler.finish_group("g2", *GOOD)
    await sampler.calm()
    assert (await sampler.reports())["b1"].carried_out == 3
    assert await sampler.names(keys.carried(RUN)) == ["g0", "g1", "g3"]
    assert await sampler.verdicts() == {"g2": "accepted", "g4": "cancelled", "g5": "cancelled"}
    await sampler.finish_group("g3", *GOOD)
    await sampler.calm()
    assert "g3" not in await sampler.verdicts()  # it waits for a batch
    await sampler.queue.store.announce("acme:policy", 8, "keep", "")
    await sampler.submit("b2", prompts("h0"), Dapo(target_groups=2, oversample=1.0))
    await sampler.calm()
    await sampler.finish(sampler_job("g1", 1), 0.0)
    await sampler.calm()
    records = await by_name(sampler)
    assert [(each, records[each].batch_id, records[each].submitted_in) for each in ("g3", "g1")] == [
        ("g3", "b2", "b1"), ("g1", "b2", "b1"),
    ]  # fmt: skip
    assert (records["g3"].carries, records["g3"].policy_version, records["g2"].carries) == (1, 7, 0)
    report = (await sampler.reports())["b2"]
    assert (report.accepted.count, report.carried_in, report.carried_out, report.drawn) == (2, 3, 1, 0)
    assert report.bias == []


def sampler_job(name: str, index: int) -> str:
    return f"{group(name)}:{index}"


async def test_a_carry_over_that_is_too_old_for_the_next_batch_expires(sampler: Sampler) -> None:
    await sampler.queue.store.announce("acme:policy", 1, "keep", "")
    await sampler.submit("b1", prompts("g0", "g1"), Dapo(target_groups=1))
    await sampler.calm()
    await sampler.finish_group("g0", *GOOD)
    await sampler.calm()
    await sampler.queue.store.announce("acme:policy", 4, "keep", "")
    await sampler.submit("b2", prompts("h0"), Dapo(target_groups=1), max_staleness=2)
    await sampler.calm()
    record = (await by_name(sampler))["g1"]
    assert (record.verdict, record.reason) == ("expired", "its policy version is older than max_staleness allows")
    assert [str(each.outcome) for each in record.samples] == ["cancelled", "cancelled"]


async def test_a_carry_over_that_no_batch_takes_over_expires(sampler: Sampler) -> None:
    await sampler.submit("b1", prompts("g0", "g1", "g2"), Dapo(target_groups=1, carry_ms=1))
    await sampler.calm()
    await sampler.finish_group("g2", *GOOD)
    await sampler.finish_group("g1", *GOOD)
    await sampler.calm()
    assert await sampler.verdicts() == {"g0": "expired", "g1": "expired", "g2": "accepted"}
    assert await sampler.queue.command("ZCARD", sampler.queue.keys.carrying) == 0


async def test_the_first_groups_in_the_order_of_their_draw_count(sampler: Sampler) -> None:
    """A late but early drawn group is waited for; what cannot be among the first is stopped meanwhile."""
    names = [f"g{number}" for number in range(8)]
    await sampler.submit("b", prompts(*names), Dapo(target_groups=2, oversample=1.0, surplus=Surplus.ORDERED))
    await sampler.calm()
    await sampler.finish_group("g1", *GOOD)
    await sampler.calm()
    assert await sampler.verdicts() == {"g1": "accepted"}  # only one group before it can still count
    await sampler.finish_group("g2", *GOOD)
    await sampler.calm()
    assert await sampler.verdicts() == {"g1": "accepted", "g3": "cancelled"}  # g2 waits for g0
    await sampler.finish_group("g0", *GOOD)
    await sampler.calm()
    verdicts = await sampler.verdicts()
    assert {name for name in names if verdicts[name] == "accepted"} == {"g0", "g1"}
    assert len(verdicts) == len(names)
    assert (await sampler.reports())["b"].reason == "target"


async def test_a_batch_may_live_on_the_runs_prompts_and_waits_for_more(sampler: Sampler) -> None:
    await sampler.submit("ahead", prompts("p0", "p1"), prompts=True)
    await sampler.submit("b", (), Dapo(target_groups=1, reservoir=Reservoir.RUN))
    await sampler.calm()
    await sampler.finish_group("p0", *WRONG)
    await sampler.finish_group("p1", *WRONG)
    await sampler.calm()
    assert await sampler.reports() == {}
    await sampler.submit("more", prompts("p2", "p3", "p4", "p5", "p6", "p7"), prompts=True)
    await sampler.calm()
    await sampler.finish_group("p3", *GOOD)
    await sampler.calm()
    assert (await sampler.reports())["b"].accepted.count == 1
    assert await sampler.names(sampler.queue.keys.reservoir(RUN)) == ["p6", "p7"]  # they wait for another batch
    record = (await by_name(sampler))["p3"]
    assert (record.batch_id, record.submitted_in) == ("b", "more")


async def test_prompts_that_were_acknowledged_are_not_stored_again(sampler: Sampler) -> None:
    """Their submission may be repeated at any time, also after another batch drew and closed them."""
    await sampler.submit("ahead", prompts("p0"), prompts=True)
    await sampler.submit("b", (), Dapo(target_groups=1, reservoir=Reservoir.RUN))
    await sampler.calm()
    await sampler.finish_group("p0", *GOOD)
    await sampler.calm()
    assert await sampler.queue.ack_all() == 2
    assert (await sampler.submit("ahead", prompts("p0"), prompts=True)).repeated
    assert await sampler.names(sampler.queue.keys.reservoir(RUN)) == []


async def test_a_filter_by_accuracy(sampler: Sampler) -> None:
    rule = Accuracy(least=0.5, most=0.75)
    await sampler.submit("b", prompts("g0", "g1", "g2", n=4), Dapo(target_groups=3, filter=rule))
    await sampler.calm()
    await sampler.finish_group("g0", 1.0, 0.0, 0.0, 0.0)
    await sampler.finish_group("g1", 1.0, 1.0, 0.0, 0.0)
    await sampler.finish_group("g2", 1.0, 1.0, 1.0, 1.0)
    await sampler.calm()
    assert await sampler.verdicts() == {"g0": "filtered", "g1": "accepted", "g2": "filtered"}
    report = (await sampler.reports())["b"]
    assert (report.filtered_mixed.count, report.filtered_right.count) == (1, 1)


async def test_a_lost_sample_is_refilled_alone_and_its_cost_is_told(sampler: Sampler) -> None:
    await sampler.submit("b", prompts("g0"), Dapo(target_groups=1))
    await sampler.calm()
    await sampler.finish(sampler_job("g0", 0), 1.0)
    await sampler.finish(sampler_job("g0", 1), None)
    await sampler.calm()
    await sampler.finish(sampler_job("g0", 2), 0.0)
    await sampler.calm()
    [record] = await sampler.records()
    assert [each.replaced for each in record.samples] == [False, True, False]
    assert record.advantages == [1.0, None, -1.0]
    report = (await sampler.reports())["b"]
    assert (report.refilled.count, report.refilled.tokens, report.accepted.tokens) == (1, 10, 30)


@pytest.mark.parametrize("surplus", list(Surplus))
@pytest.mark.parametrize("kind", ["batch", "run"])
async def test_a_cancelled_batch_closes_with_a_record_for_every_prompt(
    sampler: Sampler, kind: str, surplus: Surplus
) -> None:
    """In its reservoir, in the backlog, running, parked, carried: nothing is left, and nothing is drawn any more."""
    names = [f"g{number}" for number in range(9)]
    await sampler.submit("b0", prompts("c0", "c1", "c2"), Dapo(target_groups=1))
    await sampler.calm()
    await sampler.finish_group("c1", *GOOD)
    await sampler.calm()
    await sampler.submit("ahead", prompts("p0"), prompts=True)
    await sampler.submit("b", prompts(*names), Dapo(target_groups=3, surplus=surplus))
    await sampler.calm()
    await sampler.finish_group("g2", *GOOD)
    await sampler.calm()
    name = f"{RUN_ID}:b" if kind == "batch" else RUN_ID
    answer = await sampler.cancel(kind, name)
    assert answer.state == "cancelling"
    await sampler.calm()
    verdicts = await sampler.verdicts()
    assert set(names) <= set(verdicts)
    assert (await sampler.reports())["b"].reason == "cancelled"
    assert (await sampler.cancel(kind, name)).state == "cancelled"
    if kind == "batch":
        assert "p0" not in verdicts
        await sampler.cancel("run", RUN_ID)
        await sampler.calm()
    await sampler.queue.ack_all()
    keys = sampler.queue.keys
    left = [key.decode() for key in await sampler.queue.command("KEYS", "*")]
    for kept in ("reservoir:", "drawn:", "carried:", "group:", "open:", "groups:", "backlog:"):
        assert not [key for key in left if key.startswith(keys.prefix + kept)], kept
    assert await sampler.queue.command("ZCARD", keys.dapo) == 0


async def test_a_group_that_0_1_0_took_with_fewer_samples_closes_with_all_of_them(sampler: Sampler) -> None:
    """Whether a worker of that release makes it due early or not."""
    await sampler.submit("b", prompts("g0", n=4))
    key, command = sampler.queue.keys.open(GroupRef(group("g0"))), sampler.queue.command
    await command("SET", key, encode(decode_any(await command("GET", key)) | {"accept": 2, "due_at": 2}))
    await sampler.calm()
    first, second, *others = await sampler.running()
    await sampler.finish(first, 1.0)
    await sampler.finish(second, 0.0)
    await command("XADD", sampler.queue.keys.due, "*", "g", group("g0"))
    await sampler.calm()
    assert (await sampler.verdicts(), await sampler.running()) == ({}, others)
    for ref in others:
        await sampler.finish(ref, 1.0)
    await sampler.calm()
    [record] = await sampler.records()
    assert (record.verdict, record.bias, len(record.samples)) == ("accepted", None, 4)


async def test_a_group_that_0_1_0_had_stopped_with_fewer_samples_is_cancelled(sampler: Sampler) -> None:
    await sampler.submit("b", prompts("g0", n=4))
    await sampler.calm()
    first, second, *_ = await sampler.running()
    await sampler.finish(first, 1.0)
    await sampler.finish(second, 0.0)
    await sampler.queue.command("HSET", sampler.queue.keys.group(GroupRef(group("g0"))), "withdrawn", "enough")
    await sampler.cancel("group", f"{RUN_ID}:g0")
    await sampler.calm()
    [record] = await sampler.records()
    assert (record.verdict, record.reason) == ("cancelled", "2 of 4 samples ended before the cancel")


async def test_a_report_is_acknowledged_like_a_group(sampler: Sampler) -> None:
    await sampler.submit("b", prompts("g0"), Dapo(target_groups=1))
    await sampler.calm()
    await sampler.finish_group("g0", *GOOD)
    await sampler.calm()
    store, run = sampler.queue.store, sampler.queue.keys.run(RUN)
    found = await results.collect(store, RUN)
    assert [each.of_batch for each in found] == [False, True]
    assert int(await store.read("HGET", run, "bytes")) > len(found[1].record)
    assert await results.acknowledge(store, RUN, [each.cursor for each in found]) == 2
    assert await results.acknowledge(store, RUN, [each.cursor for each in found]) == 0
    assert await store.read("HGET", run, "bytes") == b"0"


async def test_what_a_trainer_acknowledged_on_the_stream_itself_is_deleted_the_report_too(sampler: Sampler) -> None:
    await sampler.submit("b", prompts("g0"), Dapo(target_groups=1))
    await sampler.calm()
    await sampler.finish_group("g0", *GOOD)
    await sampler.calm()
    command, stream = sampler.queue.command, sampler.queue.keys.results(RUN)
    [(_, entries)] = await command("XREADGROUP", "GROUP", "trainer", "me", "STREAMS", stream, ">")
    assert [fields[0] for _, fields in entries] == [b"r", b"b"]
    await command("XACK", stream, "trainer", entries[0][0])
    await Janitor(sampler.queue.store, lease_ms=1_000).turn()
    assert await command("XLEN", stream) == 1
    await command("XACK", stream, "trainer", entries[1][0])
    await Janitor(sampler.queue.store, lease_ms=1_000).turn()
    assert await command("XLEN", stream) == 0
