"""What a trainer does, over either door."""

import asyncio
import subprocess
import sys

import pytest

from prorl_mq.cli.looking import status_text
from prorl_mq.client import AsyncClient, Client, RunSettings, ServiceError
from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.ids import public
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Task
from prorl_mq.schema.policy import BackendPolicy, PolicyStatus
from prorl_mq.schema.status import PauseAnswer
from prorl_mq.store.policy import announced
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.api.process import started
from tests.api.service import SOURCE, TRAJECTORY, Worker, announce_source, batch
from tests.api.test_turns import answered, sampled, write

pytestmark = pytest.mark.anyio


async def test_a_batch_comes_back_with_its_tokens_and_leaves_with_its_acknowledgement(
    client: AsyncClient, worker: Worker
) -> None:
    accepted = await client.submit(batch(groups=2))
    assert (accepted.jobs, accepted.repeated) == (2, False)
    for _ in range(2):
        await worker.complete()
    async with asyncio.timeout(30):
        groups = [group async for group in client.groups("run", batch_id="batch")]
    assert sorted(group.record.group_id for group in groups) == ["batch-0", "batch-1"]
    [sample] = groups[0].record.samples
    assert await client.trajectory(sample.job_id) == TRAJECTORY
    assert (await client.job(sample.job_id)).outcome == "completed"
    assert (await client.batch("run:batch")).open == 0
    assert await client.ack("run", [group.cursor for group in groups]) == 2
    assert await client.ack("run", [group.cursor for group in groups]) == 0


async def test_the_turns_of_a_job_are_there_before_it_has_ended(client: AsyncClient, worker: Worker) -> None:
    await client.submit(batch())
    held = await worker.in_run()
    assert "has logged no turn" in (await client.turns("run:batch-0:0")).note
    await write(worker, held, [sampled(0.5), answered("a"), sampled(1.0), answered("b"), sampled(1.5)])
    page = await client.turns("run:batch-0:0", after=1)
    assert [(turn.number, turn.ids, turn.calls[0].result) for turn in page.turns] == [(1, [7, 8], "b")]
    assert page.under_way is not None
    assert (page.under_way.number, page.next, page.complete) == (2, 2, False)
    for odd in (-1, 1.5, "1", None):
        with pytest.raises(ServiceError, match="numbered 0, 1, 2 and so on") as refused:
            await client.turns("run:batch-0:0", after=odd)  # type: ignore[arg-type]
        assert refused.value.status == 422
    with pytest.raises(ServiceError, match="no job"):
        await client.turns("run:none:0")


async def test_a_job_and_a_run_are_paused_and_resumed(client: AsyncClient, worker: Worker) -> None:
    """Its group waits meanwhile, and the trainer sees which of its samples it waits for."""
    await client.submit(batch(groups=1, n=2))
    held = await worker.in_run()
    first, second = "run:batch-0:0", "run:batch-0:1"
    running = public(held.ref)
    waiting = second if running == first else first
    assert await client.pause("job", waiting, for_s=60) == PauseAnswer(id=waiting, state="paused", jobs=1)
    again = await client.pause("job", running, for_s=60, then="expire")
    assert (again.state, again.jobs, again.pausing) == ("pausing", 0, 1)
    assert (await client.job(running)).why.endswith("; it is about to be paused")
    seen = await client.job(waiting)
    assert (seen.state, seen.why.partition(";")[0]) == ("paused", "paused in init")
    assert status_text(seen).startswith(f"{waiting}: paused in init; in ")
    assert await client.pause("run", "run") == PauseAnswer(id="run", state="pausing", jobs=1, pausing=1)
    [run] = [each for each in await client.runs() if each.run_id == "run"]
    assert run.paused_until_ms is not None
    assert await client.resume("run", "run") == PauseAnswer(id="run", state="resumed", jobs=2)
    assert (await client.resume("job", waiting)).jobs == 0
    [run] = [each for each in await client.runs() if each.run_id == "run"]
    assert run.paused_until_ms is None
    assert (await client.job(waiting)).state == "queued"
    assert "paused" not in (await client.job(running)).why
    assert [each.event for each in (await client.timeline(waiting)).changes][-2:] == ["park", "resume"]


async def test_what_cannot_be_paused_says_why(client: AsyncClient, worker: Worker) -> None:
    await client.submit(batch(groups=1))
    await worker.complete()
    for wrong, said in (("run:none:0", "no job"), ("run:batch-0:0", "has ended")):
        with pytest.raises(ServiceError, match=said):
            await client.pause("job", wrong)
    with pytest.raises(ServiceError, match="has ended"):
        await client.resume("job", "run:batch-0:0")
    with pytest.raises(ServiceError, match="jobs and runs can"):
        await client.pause("batch", "run:batch")
    with pytest.raises(ServiceError, match="for_ms"):
        await client.pause("run", "run", for_s=0.1)
    with pytest.raises(ServiceError, match="then"):
        await client.pause("run", "run", then="forget")


async def test_a_dapo_batch_ends_with_its_groups_and_then_has_its_report(client: AsyncClient, worker: Worker) -> None:
    await client.submit(batch(groups=2, n=2, dapo={"target_groups": 1, "surplus": "ordered"}))
    with pytest.raises(ServiceError, match="its report comes after its last group"):
        await client.report("run", "batch")
    for reward in (0.0, 0.0, 0.0, 1.0):  # the other way round, the second group would be stopped
        await worker.complete(reward)
    async with asyncio.timeout(30):
        groups = [group async for group in client.groups("run", batch_id="batch")]
    assert [str(group.record.verdict) for group in groups].count("accepted") == 1
    assert len(groups) == 2
    closed = await client.report("run", "batch")
    assert (closed.report.reason, closed.report.accepted.count) == ("target", 1)
    assert await client.ack("run", [closed.cursor, *(group.cursor for group in groups)]) == 3
    await client.submit(batch(name="plain"))
    with pytest.raises(ServiceError, match="is no DAPO batch"):
        await client.report("run", "plain")


async def test_the_same_batch_twice_is_one_batch(client: AsyncClient) -> None:
    task = Task(task_id="t", data_source=SOURCE, payload={"question": "?"})
    request = BatchRequest(run_id="run", batch_id="b", groups=[GroupRequest(task=task)])
    first, second = await client.submit(request), await client.submit(request)
    assert (first.groups, first.repeated, second.repeated) == (second.groups, False, True)


async def test_a_cancelled_batch_ends_its_iterator(client: AsyncClient) -> None:
    await client.submit(batch(groups=3))
    answer = await client.cancel("batch", "run:batch")
    assert (answer.id, answer.state) == ("run:batch", "cancelled")
    async with asyncio.timeout(30):
        verdicts = [group.record.verdict async for group in client.groups("run", batch_id="batch")]
    assert verdicts == ["cancelled"] * 3


async def test_an_iterator_of_a_batch_ends_though_some_groups_were_acknowledged_before(client: AsyncClient) -> None:
    await client.submit(batch(groups=3))
    await client.cancel("run", "run")
    async with asyncio.timeout(30):
        first = [group async for group in client.groups("run", batch_id="batch")]
        await client.ack("run", [first[0].cursor])
        again = [group async for group in client.groups("run", batch_id="batch")]
    assert again == first[1:]


async def test_an_iterator_of_a_batch_passes_over_the_groups_of_others(client: AsyncClient) -> None:
    await client.submit(batch(name="other", groups=120))
    await client.cancel("batch", "run:other")
    await client.submit(batch(name="mine"))
    await client.cancel("batch", "run:mine")
    async with asyncio.timeout(30):
        mine = [group.record.group_id async for group in client.groups("run", batch_id="mine")]
    assert mine == ["mine-0"]


async def test_an_iterator_goes_on_after_a_cursor(client: AsyncClient) -> None:
    await client.submit(batch(groups=3))
    await client.cancel("run", "run")
    async with asyncio.timeout(30):
        first = [group async for group in client.groups("run", batch_id="batch")]
        later = client.results("run", after=first[0].cursor)
        assert [await anext(later), await anext(later)] == first[1:]


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"batchid": "x"}, 422, "batch_id"),
        ({"run_id": "a:b"}, 422, "run_id"),
        ({"sampling": {"n": 1}}, 422, "sampling"),
    ],
)
async def test_a_wrong_batch_is_refused_with_the_field(
    client: AsyncClient, change: dict[str, object], status: int, said: str
) -> None:
    with pytest.raises(ServiceError, match=said) as error:
        await client.submit(batch(**change))  # type: ignore[arg-type]
    assert error.value.status == status


async def test_a_text_that_is_no_jobs_id_is_told_how_one_reads(client: AsyncClient) -> None:
    await client.submit(batch(groups=1))
    for name in ("run", "run:batch-0", "run:batch-0:x", "run:batch-0:", "run:batch-0:0:1", "run:batch-0:00"):
        for call in (
            client.job(name), client.timeline(name), client.trajectory(name), client.turns(name), client.fork(name, 0),
            client.pause("job", name), client.resume("job", name), client.cancel("job", name),
        ):  # fmt: skip
            with pytest.raises(ServiceError, match="run:group:index") as error:
                await call
            assert error.value.status == 404, name


async def test_refusals_carry_the_services_words(client: AsyncClient) -> None:
    await client.submit(batch())
    unknown = batch(name="u")
    unknown["groups"][0]["task"]["data_source"] = "ecko"
    calls = [
        (client.submit(batch(n=2)), 409, "another body"),
        (client.submit(unknown), 422, "'echo'"),
        (client.job("run:none:0"), 404, "run:none:0"),
        (client.batch("run:none"), 404, "run:none"),
        (client.cancel("run", "none"), 404, "none"),
        (client.cancel("jobs", "none"), 422, "did you mean 'job'"),
        (client.ack("run", ["x"]), 422, "cursor"),
        (client.ack("none", ["1-1"]), 404, "there is no run 'none': submit a batch first"),
        (anext(client.results("none")), 404, "none"),
    ]
    for call, status, said in calls:
        with pytest.raises(ServiceError, match=said) as error:
            await call
        assert error.value.status == status, said


async def test_an_acknowledgement_of_an_unknown_run_makes_nothing(client: AsyncClient, settings: RedisSettings) -> None:
    with pytest.raises(ServiceError, match="there is no run 'typo'"):
        await client.ack("typo", ["1-1"])
    redis = connect(settings)
    assert await redis.execute_command("KEYS", "*typo*") == []
    await redis.aclose()


async def test_backends_and_policy_versions_are_announced(client: AsyncClient, worker: Worker) -> None:
    assert await client.add_backend("policy", "http://127.0.0.1:8000", protocol="completions") == "joined"
    assert await client.add_backend("policy", "http://127.0.0.1:8000") == "known"
    await client.announce_policy_version("policy", 7, "drain")
    for _ in range(2):  # a client whose answer was lost says it again
        await client.announce_policy_version("policy", 8, "abort", "/weights/8")
    assert await client.policy("policy") == PolicyStatus(
        pool="policy",
        version=8,
        mode="abort",
        weights="/weights/8",
        backends=[BackendPolicy(address="http://127.0.0.1:8000", serves=None, step=None)],
    )
    said = await announced(worker.store, "default:policy")
    assert [version for _, version in said.history] == [7, 8]
    with pytest.raises(ServiceError):
        await client.announce_policy_version("policy", -1)


async def test_a_run_gets_its_weight_and_quotas(client: AsyncClient) -> None:
    made = await client.configure_run("run", RunSettings(weight=2, max_unacked_groups=16))
    assert (made.settings, made.backlog) == (RunSettings(weight=2, max_unacked_groups=16), 0)
    await client.submit(batch(groups=3))
    [run] = await client.runs()
    assert (run.run_id, run.settings, run.backlog) == ("run", made.settings, 3)
    for wrong in (RunSettings(weight=0), {"weight": float("nan")}, {"wieght": 1}):
        with pytest.raises(ServiceError, match=r"w\w+ght") as error:
            await client.configure_run("run", wrong)
        assert error.value.status == 422


async def test_plain_code_does_the_same_without_an_event_loop(address: str, settings: RedisSettings) -> None:
    def trainer() -> list[str]:
        with Client(address, namespace=settings.namespace, patience_s=20) as client:
            client.submit(batch(groups=2))
            client.configure_run("run", {"weight": 2})
            assert [run.settings.weight for run in client.runs()] == [2.0]
            client.cancel("run", "run")
            groups = list(client.groups("run", batch_id="batch"))
            assert client.ack("run", [group.cursor for group in groups]) == 2
            endless = client.results("run", wait_s=30)
            client.submit(batch(name="b2"))
            client.cancel("batch", "run:b2")
            last = next(endless)
            endless.close()  # type: ignore[attr-defined]
            return [group.record.group_id for group in (*groups, last)]

    async with asyncio.timeout(40):
        assert sorted(await asyncio.to_thread(trainer)) == ["b2-0", "batch-0", "batch-1"]


def test_a_trainer_that_imports_the_client_gets_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'starlette', 'uvicorn', 'tokenizers', 'prometheus_client', 'workers', 'api'}"
    code = f"import prorl_mq.client, sys; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("address", ["ftp://h", "http://", "http://h:80x", "http://h:0"])
def test_what_is_no_address_of_the_service_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="begins with"):
        Client(address)


@pytest.mark.parametrize("door", ["http", "redis"])
async def test_a_batch_that_is_sent_before_the_first_worker_has_started_waits_for_it(
    settings: RedisSettings, door: str
) -> None:
    """A deployment's API is there first: a trainer that is started with it must not end for that."""
    async with started(settings) as (_, url):
        address = url if door == "http" else settings.url
        async with AsyncClient(address, namespace=settings.namespace, patience_s=0) as hasty:
            with pytest.raises(ServiceError, match=f"no worker has started so far, so the data source '{SOURCE}'"):
                await hasty.submit(batch())
        async with AsyncClient(address, namespace=settings.namespace, patience_s=60) as patient, asyncio.timeout(60):
            sent = asyncio.create_task(patient.submit(batch()))
            await announce_source(settings)
            assert (await sent).jobs == 1
            other = batch(name="other")
            other["groups"][0]["task"]["data_source"] = "ecko"
            with pytest.raises(ServiceError, match=r"no worker has announced the data source 'ecko'.*'echo'"):
                await patient.submit(other)
