"""One attempt and its pool: where its calls go, when they wait, and when they are ended."""

import asyncio

import pytest

from prorl_mq.duties.load_weights import Weights
from prorl_mq.duties.probe_backends import BackendHealth
from prorl_mq.rules.breaker import MISSES
from prorl_mq.schema.messages import Sampling
from prorl_mq.store import pools as backends
from prorl_mq.testing.wire import FakeFault
from tests.pool.conftest import PROMPT, attempt, in_run, joined, turn, until
from tests.support.queue import POOL, Queue
from workers.agent.tokens import TokenRecord
from workers.inference.logprobs import LogprobMode, LogprobsRefused, told
from workers.inference.protocol import InferenceError
from workers.stages.backends import FRESH_S, Pools

pytestmark = pytest.mark.anyio


async def tell(queue: Queue, fake, version: str) -> None:
    """As a health check finds it."""
    fake.version = version
    seen = (await backends.view(queue.store, POOL)).backends[fake.address]
    await backends.observe(queue.store, POOL, fake.address, seen.breaker, lambda now, _ms: now, {"version": version})


def turns_on(fake) -> list:
    """What it was asked, beside its probe."""
    return [each for each in fake.requests if not each.call.request_id.startswith("probe")]


async def test_a_trajectory_goes_on_elsewhere_when_its_backend_dies(queue, pools, fakes) -> None:
    """In the middle of it; nothing but the prefix cache is lost."""
    one, two = await fakes(), await fakes()
    await joined(queue, one, two)
    [held] = await in_run(queue)
    policy = attempt(pools, held)
    first = await turn(policy)
    dead, alive = (one, two) if first.backend == one.address else (two, one)
    await dead.stop()
    prompt = [*PROMPT, *first.ids, 77]
    second = await turn(policy, prompt)
    assert second.backend == alive.address
    assert list(alive.requests[-1].call.prompt_ids) == prompt
    assert [await queue.load(dead.address), await queue.load(alive.address)] == [0, 1]
    await queue.store.release([held])
    assert [await queue.load(dead.address), await queue.load(alive.address)] == [0, 0]


async def test_failed_calls_shut_a_backend_for_every_worker_and_a_trial_opens_it(queue, pools, clients, fakes) -> None:
    fake = await fakes()
    await joined(queue, fake)
    first, second, third = await in_run(queue, n=3)
    await turn(attempt(pools, third))
    fake.fault = FakeFault.ERROR
    policy = attempt(pools, first)
    with pytest.raises(InferenceError):
        await turn(policy)
    fake.fault = None
    elsewhere = Pools(queue.worker("w1").store, clients)  # what it knows of backends is its own
    waiting = asyncio.create_task(turn(attempt(elsewhere, second)))
    [shown] = await backends.listing(queue.store, POOL)
    assert shown.breaker == "open"
    answer = await waiting  # its back-off is over within a second
    assert answer.backend == fake.address
    [shown] = await backends.listing(queue.store, POOL)
    assert shown.breaker == "closed"


async def test_calls_to_a_backend_that_hangs_are_given_up_once_probes_miss(queue, pools, control, fakes) -> None:
    """A host that is gone answers nothing, not even a reset: its jobs would else wait for their whole time-out."""
    hung, other = await fakes(), await fakes()
    await joined(queue, hung)
    [held] = await in_run(queue)
    policy = attempt(pools, held)
    await turn(policy)
    await joined(queue, other)
    hung.fault = FakeFault.HANG
    task = asyncio.create_task(turn(policy))
    await hung.wait_running(1)
    hung.healthy = False
    health = BackendHealth(queue.store, control, every_s=0.01)
    for _ in range(MISSES):
        await health.turn()
    looking = asyncio.create_task(pools.calls.run())
    try:
        assert (await asyncio.wait_for(task, 60)).backend == other.address
    finally:
        looking.cancel()
    await hung.wait_running(0)


@pytest.mark.parametrize("mode", ["drain", "abort"])
async def test_a_new_turn_waits_for_the_announced_weights(queue, pools, fakes, mode) -> None:
    fake = await fakes()
    await joined(queue, fake)
    await tell(queue, fake, "6")
    [held] = await in_run(queue)
    policy = attempt(pools, held)
    await turn(policy)
    await queue.store.announce(POOL, 7, mode, "")
    pools.look_again(POOL)
    task = asyncio.create_task(turn(policy))
    done, _ = await asyncio.wait({task}, timeout=3 * FRESH_S)
    assert not done
    assert len(turns_on(fake)) == 1
    await tell(queue, fake, "7")
    assert (await task).version == ("7", "7")


async def test_in_mode_keep_a_turn_goes_on_and_its_spans_carry_both_versions(queue, pools, control, fakes) -> None:
    fake = await fakes()
    fake.version = "6"
    await joined(queue, fake)
    [held] = await in_run(queue)
    policy = attempt(pools, held)
    await turn(policy)
    fake.latency_ms = 1_500
    task = asyncio.create_task(turn(policy, tokens=1000))
    await fake.wait_running(1)
    await fake.wait_until(lambda now: any(each.begun for each in now._running.values()))
    await queue.store.announce(POOL, 7, "keep", "/weights/7")
    await Weights(queue.store, control).turn()
    answer = await task
    assert answer.version == ("6", "7")
    assert [span.version for span in answer.spans] == [("6", "6"), ("7", "7")]
    assert (answer.spans[0].end, answer.spans[-1].end) == (answer.spans[1].start, 1000)
    assert len(turns_on(fake)) == 2, "it was not sent again"


async def test_in_mode_abort_partial_tokens_are_kept_and_the_turn_resumes_on_the_new_weights(
    queue, pools, control, fakes
) -> None:
    """The service loads the weights: the pause cuts the request, which continues under a new one."""
    fake = await fakes()
    fake.version = "6"
    await joined(queue, fake)
    [held] = await in_run(queue)
    policy = attempt(pools, held)
    await turn(policy)
    fake.latency_ms = 2_000
    task = asyncio.create_task(turn(policy, tokens=1000))
    await fake.wait_until(lambda now: any(each.begun for each in now._running.values()))
    [running] = fake._running.values()

    async def sampled_some() -> bool:
        return running.share() > 0.05

    await until(sampled_some)
    fake.load_ms = 50
    await queue.store.announce(POOL, 7, "abort", "/weights/7")
    await Weights(queue.store, control).turn()
    fake.latency_ms = 0
    answer = await task
    _, cut, rest = turns_on(fake)
    assert (cut.state, rest.state) == ("aborted", "done")
    kept = len(rest.call.prompt_ids) - len(PROMPT)
    assert 0 < kept < 1000
    assert [(span.end, span.version) for span in answer.spans] == [(kept, ("6", "6")), (1000, ("7", "7"))]
    assert rest.call.cache_salt != cut.call.cache_salt


async def test_in_mode_abort_a_trainer_that_moves_its_own_weights_gets_calls_aborted_by_id(queue, pools, fakes) -> None:
    fake = await fakes()
    await joined(queue, fake)
    await tell(queue, fake, "6")
    await queue.store.announce(POOL, 6, "keep", "")
    [held] = await in_run(queue)
    policy = attempt(pools, held)
    await turn(policy)
    fake.latency_ms = 60_000
    task = asyncio.create_task(turn(policy, tokens=1000))
    await fake.wait_running(1)
    await queue.store.announce(POOL, 7, "abort", "")
    pools.look_again(POOL)
    await pools.calls.look()
    await fake.wait_running(0)
    assert fake.aborts == ["generate-tokens-" + turns_on(fake)[1].call.request_id]
    fake.latency_ms = 0
    await tell(queue, fake, "7")
    answer = await task
    assert answer.version is not None
    assert answer.version[1] == "7"
    assert [each.state for each in turns_on(fake)] == ["done", "aborted", "done"]


async def test_prefix_caches_are_salted_by_version(queue, pools, fakes) -> None:
    fake = await fakes()
    await joined(queue, fake)
    [held] = await in_run(queue)
    policy = attempt(pools, held)
    prompt = list(range(64))
    for version in (6, 7):
        await tell(queue, fake, str(version))
        await queue.store.announce(POOL, version, "keep", "")
        pools.look_again(POOL)
        cold = await turn(policy, prompt)
        warm = await turn(policy, prompt)
        assert (cold.cached_tokens, warm.cached_tokens) == (0, 48)


async def test_a_backend_that_is_updated_for_too_long_is_left_for_another(queue, pools, fakes, monkeypatch) -> None:
    monkeypatch.setattr("workers.stages.backends.HOLD_S", 0.5)
    behind, ready = await fakes(), await fakes()
    await joined(queue, behind)
    await tell(queue, behind, "6")
    [held] = await in_run(queue)
    policy = attempt(pools, held)
    await turn(policy)
    await joined(queue, ready)
    await tell(queue, ready, "7")
    await queue.store.announce(POOL, 7, "drain", "")
    pools.look_again(POOL)
    assert (await turn(policy)).backend == ready.address
    assert [await queue.load(behind.address), await queue.load(ready.address)] == [0, 1]


async def test_raw_logprobs_are_refused_and_said_where_people_look(queue, pools, fakes, caplog) -> None:
    """Importance ratios from them would be wrong, and nothing would show it."""
    fake = await fakes(logprobs_mode="raw")
    await joined(queue, fake)
    [held] = await in_run(queue)
    with pytest.raises(LogprobsRefused, match=r"temperature 0\.7.*--logprobs-mode processed_logprobs.*raw_logprobs"):
        await turn(attempt(pools, held, sampling=Sampling(temperature=0.7)))
    assert told(LogprobMode.RAW) in caplog.text
    [shown] = await backends.listing(queue.store, POOL)
    assert (shown.note, shown.breaker) == (told(LogprobMode.RAW), "closed")


@pytest.mark.parametrize(
    ("mode", "sampling"),
    [
        ("raw", Sampling(temperature=0.5, raw_logprobs=True)),
        ("scaled", Sampling(temperature=1.0, top_p=0.9, raw_logprobs=True)),
    ],
)
async def test_logprobs_that_are_asked_for_as_they_are_are_marked(queue, pools, fakes, mode, sampling) -> None:
    fake = await fakes(logprobs_mode=mode)
    await joined(queue, fake)
    [held] = await in_run(queue)
    policy = attempt(pools, held, sampling=sampling)
    answer = await policy.generate([11, 12], max_tokens=4, temperature=sampling.temperature, top_p=sampling.top_p)
    assert [span.raw_logprobs for span in answer.spans] == [True]
    record = TokenRecord([11, 12])
    record.sample(answer)
    trajectory = record.trajectory(stop_reason="finish", truncated_by=None, sampling=sampling)
    assert trajectory.segments[0].raw_logprobs


@pytest.mark.parametrize(
    ("mode", "sampling"),
    [("raw", Sampling()), ("raw", Sampling(temperature=0.0)), ("scaled", Sampling(temperature=0.5))],
)
async def test_logprobs_of_the_sampled_distribution_are_taken_from_any_backend(
    queue, pools, fakes, mode, sampling
) -> None:
    """Raw ones are those of temperature 1, and scaled ones those of the whole vocabulary."""
    fake = await fakes(logprobs_mode=mode)
    await joined(queue, fake)
    [held] = await in_run(queue)
    answer = await attempt(pools, held, sampling=sampling).generate(
        [11, 12], max_tokens=4, temperature=sampling.temperature
    )
    assert [span.raw_logprobs for span in answer.spans] == [False]


async def test_a_backend_whose_logprobs_do_not_fit_is_left_for_one_whose_do(queue, pools, fakes) -> None:
    raw, processed = await fakes(logprobs_mode="raw"), await fakes()
    await joined(queue, raw, processed)
    for held in await in_run(queue, n=4):
        answer = await turn(attempt(pools, held, sampling=Sampling(temperature=0.7)))
        assert answer.backend == processed.address
    assert await queue.load(raw.address) == 0


async def test_a_job_waits_while_its_pool_has_nobody_and_goes_on_when_one_comes(queue, pools, fakes) -> None:
    [held] = await in_run(queue)
    task = asyncio.create_task(turn(attempt(pools, held)))
    done, _ = await asyncio.wait({task}, timeout=0.3)
    assert not done
    fake = await fakes()
    await joined(queue, fake)
    assert (await asyncio.wait_for(task, 60)).backend == fake.address


async def test_one_look_serves_all_calls_of_a_process(queue, pools, fakes) -> None:
    """Otherwise every call would cost a round trip to Redis."""
    fake = await fakes()
    await joined(queue, fake)
    jobs = await in_run(queue, n=8)
    policies = [attempt(pools, held) for held in jobs]
    await asyncio.gather(*(turn(policy) for policy in policies))
    before = int((await queue.command("INFO", "commandstats")).split(b"cmdstat_hgetall:calls=")[1].split(b",")[0])
    for _ in range(5):
        await asyncio.gather(*(turn(policy) for policy in policies))
    after = int((await queue.command("INFO", "commandstats")).split(b"cmdstat_hgetall:calls=")[1].split(b",")[0])
    assert after - before <= 10, "forty turns"
