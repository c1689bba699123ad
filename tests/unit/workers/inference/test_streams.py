"""A turn that is cut while its tokens are streamed continues from those that have arrived, and is the uncut one."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import FakeSampling, Reply, autoregressive
from tests.unit.workers.inference.conftest import PROMPT, info, policy_over
from workers.inference import arrived as streamed
from workers.inference.arrived import UNCOUNTED, Arrived, CallTokens, TokensLost
from workers.inference.assignment import FixedAssigner, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.policy import UNREPEATABLE
from workers.inference.protocol import BackendRefused, Completion
from workers.inference.protocols.streams import Lossy

pytestmark = pytest.mark.anyio
END = 999
LOSSY = "leaves tokens out of its streams, or does not count them"
STREAMING = (WireProtocol.VLLM_GENERATE, WireProtocol.SGLANG_GENERATE, WireProtocol.COMPLETIONS)


@pytest.fixture(autouse=True)
def model(backend: FakeBackend, other: FakeBackend) -> None:
    backend.reply = other.reply = autoregressive(tokens=30)


def told(completion: Completion) -> Any:
    """All that must not tell of a cut: who sampled what, counts of the cache and times may."""
    return replace(completion, backend="", spans=(), seconds=0.0, cached_tokens=None, prompt_tokens=None, version=None)


class Both:
    """One policy over two backends that have the same model."""

    def __init__(
        self, clients: InferenceClients, backend: FakeBackend, other: FakeBackend, protocol: WireProtocol
    ) -> None:
        self.backend, self.other, self.reasons = backend, other, list[str]()
        self.assigner = FixedAssigner(info(backend, protocol), info(other, protocol))
        self.policy = policy_over(clients, assigner=self.assigner)

    async def turn(self, *, arrived: Arrived | None = None, **about: Any) -> Completion:
        arrived = arrived or Arrived()
        arrived.unable = self.reasons.append
        given = {"max_tokens": 60, "temperature": 1.0, "stop_token_ids": (END,), **about}
        return await self.policy.generate(PROMPT, arrived=arrived, **given)

    async def uncut(self, **about: Any) -> Completion:
        """The same, not streamed: what there was before anything could be cut."""
        given = {"max_tokens": 60, "temperature": 1.0, "stop_token_ids": (END,), **about}
        return await self.policy.generate(PROMPT, **given)

    def asked_again(self) -> int:
        """Tokens that were sampled, beyond those of the answers."""
        return self.backend.flow.sent + self.other.flow.sent


@pytest.fixture(params=STREAMING)
def both(request: pytest.FixtureRequest, clients: InferenceClients, backend: FakeBackend, other: FakeBackend) -> Both:
    return Both(clients, backend, other, request.param)


@pytest.mark.parametrize("incremental", [True, False])
async def test_a_stream_that_nothing_cuts_is_the_answer_as_a_whole(both: Both, *, incremental: bool) -> None:
    both.backend.flow.incremental = both.other.flow.incremental = incremental
    whole, streamed = await both.uncut(), await both.turn()
    assert replace(streamed, seconds=0.0, cached_tokens=0) == replace(whole, seconds=0.0, cached_tokens=0)
    assert both.backend.flow.sent == len(whole.ids)
    assert both.reasons == []


async def test_every_place_of_a_cut_gives_the_uncut_turn_and_no_token_is_sampled_twice(both: Both) -> None:
    """Among them: before the first token, before the last one, and behind it, where its meaning alone is lost."""
    whole = await both.uncut()
    assert whole.finish_reason == "stop"
    assert 5 < len(whole.ids) < 60
    for place in range(len(whole.ids) + 1):
        now = both.policy.backend
        assert now is not None
        (both.backend if now.address == both.backend.address else both.other).flow.cut_next(place)
        before = both.asked_again()
        assert told(await both.turn()) == told(whole), place
        assert both.asked_again() - before == len(whole.ids), place


async def test_a_turn_may_be_cut_any_number_of_times(both: Both) -> None:
    whole = await both.uncut()
    for each in (both.backend, both.other):
        each.flow.cut_next(*[1] * 8)
    answer = await both.turn()
    assert told(answer) == told(whole)
    assert both.asked_again() == len(whole.ids)
    assert [span.end - span.start for span in answer.spans][:4] == [1, 1, 1, 1]
    assert {span.backend for span in answer.spans} == {both.backend.address, both.other.address}


async def test_a_turn_that_its_length_ends_is_not_longer_for_a_cut(both: Both) -> None:
    whole = await both.uncut(max_tokens=4)
    for place in (3, 4):
        both.backend.flow.cut_next(place)
        both.other.flow.cut_next(place)
        answer = await both.turn(max_tokens=4)
        assert (told(answer), answer.finish_reason) == (told(whole), "length")


@pytest.mark.parametrize("protocol", STREAMING)
async def test_a_turn_that_fills_the_context_ends_there_though_the_word_of_that_was_cut(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend, protocol: WireProtocol
) -> None:
    """The rest of it is refused: its prompt would be the whole context."""
    backend.context_tokens = other.context_tokens = room = len(PROMPT) + 5
    both = Both(clients, backend, other, protocol)
    both.assigner = FixedAssigner(*(info(each, protocol, context_tokens=room) for each in (backend, other)))
    both.policy = policy_over(clients, assigner=both.assigner)
    whole = await both.uncut()
    for each in (backend, other):
        each.flow.cut_next(len(whole.ids))
    assert (told(await both.turn()), whole.finish_reason) == (told(whole), "length")
    assert both.asked_again() == len(whole.ids), "it was cut, and the rest was not sampled"


async def test_the_death_of_a_backend_costs_no_token_that_has_arrived(both: Both) -> None:
    whole = await both.uncut()
    both.backend.flow.hold_at = both.other.flow.hold_at = 3
    task = asyncio.create_task(both.turn())
    first = both.backend
    await first.wait_until(lambda now: now.flow.sent == 3)
    both.other.flow.hold_at = None
    await first.stop()
    answer = await task
    assert told(answer) == told(whole)
    assert [(span.start, span.end, span.backend) for span in answer.spans] == [
        (0, 3, first.address),
        (3, len(whole.ids), both.other.address),
    ]
    assert list(both.other.requests[-1].call.prompt_ids) == [*PROMPT, *whole.ids[:3]]
    assert both.other.requests[-1].call.params.max_tokens == 57


async def test_new_weights_within_a_turn_are_told_by_span(clients: InferenceClients, backend: FakeBackend) -> None:
    """Paused and aborted, the stream's last event tells the version; the rest is what the new weights sample."""
    backend.flow.hold_at = 5
    policy = policy_over(clients, backend)
    task = asyncio.create_task(policy.generate(PROMPT, max_tokens=40, temperature=1.0, arrived=Arrived()))
    await backend.wait_until(lambda now: now.flow.sent == 5)
    await backend.pause("abort")
    backend.set_version("step-2")
    backend.reply, backend.flow.hold_at = autoregressive(weights="new"), None
    backend.resume()
    answer = await task
    old, new = autoregressive(tokens=30), autoregressive(weights="new")
    first = old(PROMPT, replace(backend.requests[0].call.params, max_tokens=5))
    then = new([*PROMPT, *first.ids], replace(backend.requests[0].call.params, max_tokens=35))
    assert (answer.ids, answer.logprobs) == (
        [*first.ids, *then.ids],
        [*(first.logprobs or ()), *(then.logprobs or ())],
    )
    assert [(span.start, span.end, span.version) for span in answer.spans] == [
        (0, 5, ("default", "default")),
        (5, 40, ("step-2", "step-2")),
    ]


async def test_sglang_tells_the_version_of_what_a_lost_backend_has_sampled(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend
) -> None:
    """Each event tells it; between two that tell another one it may have changed anywhere."""
    both = Both(clients, backend, other, WireProtocol.SGLANG_GENERATE)
    await both.uncut(max_tokens=1)
    backend.flow.hold_at = 4
    backend.flow.cut_next(8)
    task = asyncio.create_task(both.turn())
    await backend.wait_until(lambda now: now.flow.sent == 4)
    backend.set_version("step-2")
    backend.flow.hold_at = None
    backend.wake()
    answer = await task
    assert [(span.start, span.end, span.version) for span in answer.spans[:3]] == [
        (0, 4, ("default", "default")),
        (4, 5, ("default", "step-2")),
        (5, 8, ("step-2", "step-2")),
    ]


async def test_vllm_names_no_version_for_what_a_lost_backend_has_sampled_unless_it_is_certain(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend
) -> None:
    known: list[str | None] = []

    class Certain(FixedAssigner):
        async def version(self, address: str) -> str | None:
            return known.pop(0) if address == backend.address else None

    for versions, expected in (([None], None), (["3", "3"], ("3", "3")), (["3", "4"], None), (["3", None], None)):
        known[:] = versions
        backend.flow.cut_next(4)
        policy = policy_over(clients, assigner=Certain(info(backend), info(other)))
        answer = await policy.generate(PROMPT, max_tokens=9, temperature=1.0, arrived=Arrived())
        assert [span.version for span in answer.spans] == [expected, ("default", "default")]
        assert known == []


async def test_a_turn_whose_seed_decides_starts_again_and_says_why(both: Both) -> None:
    """Its generator has no place within an answer: a second part would be drawn with the numbers of the first."""
    whole = await both.uncut(seed=5)
    both.backend.flow.cut_next(3)
    both.other.flow.cut_next(3)
    assert told(await both.turn(seed=5)) == told(whole)
    assert both.asked_again() == 0  # nothing was streamed
    assert both.reasons == [UNREPEATABLE]


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"top_k": 1}])
async def test_a_seed_that_decides_nothing_is_no_obstacle(both: Both, greedy: dict[str, Any]) -> None:
    model = autoregressive(tokens=30)

    def unseeded(ids: Sequence[int], params: FakeSampling) -> Reply:
        return model(ids, replace(params, seed=None))

    for each in (both.backend, both.other):
        each.reply = unseeded
        each.flow.cut_next(3)
    assert told(await both.turn(seed=5, **greedy)) == told(await both.uncut(**greedy))
    assert both.reasons == []


async def test_without_the_option_nothing_is_streamed_and_a_cut_starts_again(both: Both) -> None:
    """The control: the same cut, by the death of the backend."""
    both.backend.latency_ms = 60_000
    task = asyncio.create_task(both.uncut())
    await both.backend.wait_running(1)
    await both.backend.stop()
    answer = await task
    assert [list(each.call.prompt_ids) for each in both.other.requests] == [PROMPT]
    assert {span.backend for span in answer.spans} == {both.other.address}
    assert not any(each.call.raw.get("stream") for each in (*both.backend.requests, *both.other.requests))


async def test_a_backend_that_answers_as_a_whole_is_taken_so_and_says_so(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend
) -> None:
    both = Both(clients, backend, other, WireProtocol.PRORL_GENERATE)
    whole = await both.uncut()
    assert told(await both.turn()) == told(whole)
    assert both.reasons == [f"backend {backend.address} does not stream tokens"]
    backend.streams = False
    both = Both(clients, backend, other, WireProtocol.VLLM_GENERATE)
    assert told(await both.turn()) == told(whole)
    assert both.reasons == [f"backend {backend.address} does not stream tokens"]


async def test_a_stream_that_leaves_tokens_out_is_found_and_not_asked_for_again(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    """vLLM did with `--stream-interval` above 1. The count at the end shows it; nothing of it is used."""
    for protocol in STREAMING:
        backend.flow.loses = True
        async with InferenceClients() as fresh:
            both = Both(fresh, backend, backend, protocol)
            assert told(await both.turn()) == told(await both.uncut()), protocol
            assert both.reasons == [
                f"backend {backend.address} leaves tokens out of its streams, or does not count them"
            ]


@pytest.mark.parametrize("protocol", STREAMING)
async def test_a_stream_that_leaves_tokens_out_and_is_cut_before_its_end_gives_the_uncut_turn(
    backend: FakeBackend, other: FakeBackend, protocol: WireProtocol
) -> None:
    """At any place: what lacks a token is noticed by the next event, and what came before lacks none."""
    backend.flow.loses = True
    for place in range(6):
        async with InferenceClients() as fresh:
            both = Both(fresh, backend, other, protocol)
            whole = await both.uncut()
            backend.flow.cut_next(place)
            assert told(await both.turn()) == told(whole), place
            backend.flow.clear()


@pytest.mark.parametrize("protocol", [WireProtocol.VLLM_GENERATE, WireProtocol.COMPLETIONS])
@pytest.mark.parametrize("guarded", [True, False])
async def test_a_cut_stream_whose_events_count_nothing_starts_again_and_says_why(
    clients: InferenceClients,
    backend: FakeBackend,
    other: FakeBackend,
    protocol: WireProtocol,
    monkeypatch: pytest.MonkeyPatch,
    *,
    guarded: bool,
) -> None:
    """The control takes what has arrived: then the turn lacks a token, and nobody has noticed."""
    if not guarded:
        monkeypatch.setattr(CallTokens, "held", True)
    backend.flow.loses, backend.flow.counts = True, False
    both = Both(clients, backend, other, protocol)
    whole = await both.uncut()
    backend.flow.cut_next(4)
    answer = await both.turn()
    assert (told(answer) == told(whole)) is guarded
    assert both.reasons == ([f"backend {backend.address} {UNCOUNTED}"] if guarded else [])
    assert other.flow.sent == len(whole.ids) or not guarded


@pytest.mark.parametrize("protocol", STREAMING)
async def test_a_stream_that_never_counts_is_not_used_and_not_asked_for_again(
    backend: FakeBackend, protocol: WireProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with InferenceClients() as fresh:
        both = Both(fresh, backend, backend, protocol)
        whole = await both.uncut()
        backend.flow.counts, backend.flow.totals = False, False
        assert told(await both.turn()) == told(whole)
        assert both.reasons == [f"backend {backend.address} {LOSSY}"]
        sent = backend.flow.sent
        assert told(await both.turn()) == told(whole)
        assert backend.flow.sent == sent


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize(
    ("ids", "logprobs"), [([5, -1], [-1.0] * 2), ([5, 1 << 31], [-1.0] * 2), (range(1, 20), [-1.0] * 19)]
)
async def test_tokens_that_no_answer_may_have_are_not_used_of_a_cut_stream_either(
    both: Both, ids: Sequence[int], logprobs: Sequence[float], monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    """Ids that no vocabulary has, and more than were asked for. The control takes them: they would be trained, and no
    record of the log holds the first.
    """
    whole = await both.uncut(max_tokens=6)
    lying = both.policy.backend
    assert lying is not None
    first = both.backend if lying.address == both.backend.address else both.other
    monkeypatch.setattr(first, "_limit", lambda *_: 1000)
    first.reply = lambda *_: Reply(ids=ids, logprobs=logprobs, finish_reason="length")
    first.flow.cut_next(len(ids))
    if guarded:
        assert told(await both.turn(max_tokens=6)) == told(whole)
        return
    monkeypatch.setattr(streamed, "check_values", lambda *_, **__: None)
    part = Arrived()
    with contextlib.suppress(BackendRefused):  # of the second backend: a prompt cannot have such an id
        await both.turn(max_tokens=6, arrived=part)
    assert part.kept is not None
    assert part.kept.ids[: len(ids)] == list(ids)


async def test_other_streams_of_a_backend_that_leaves_tokens_out_are_not_used() -> None:
    """Those that are under way when it is found: a cut would leave no count to hold them against."""
    lossy, first, second, elsewhere = Lossy(), CallTokens("b", most=9), CallTokens("b", most=9), CallTokens("c", most=9)
    for each in (first, second, elsewhere):
        assert lossy.streamed(each.backend, each) is each
        each.add([1], [-0.5])
        each.counted("b", 1)
    assert None not in [await each.part() for each in (first, second, elsewhere)]
    with pytest.raises(TokensLost), lossy.counting("b"):
        first.counted("b", 2)
    assert [await each.part() is None for each in (first, second, elsewhere)] == [True, True, False]


async def test_tokens_of_an_attempt_before_are_not_sampled_again(both: Both) -> None:
    whole = await both.uncut()
    part = replace(whole, ids=whole.ids[:4], logprobs=whole.logprobs[:4], finish_reason="abort", stop_token=None)
    answer = await both.turn(arrived=Arrived(replace(part, spans=[replace(part.spans[0], end=4)])))
    assert told(answer) == told(whole)
    assert both.backend.flow.sent + both.other.flow.sent == len(whole.ids) - 4


async def test_what_has_arrived_can_be_read_while_the_rest_is_sampled(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    backend.flow.hold_at = 6
    arrived, policy = Arrived(), policy_over(clients, backend)
    task = asyncio.create_task(policy.generate(PROMPT, max_tokens=20, temperature=1.0, arrived=arrived))
    await _until(lambda: arrived.call is not None and len(arrived.call.ids) == 6)
    now = await arrived.so_far()
    assert now is not None
    backend.flow.hold_at = None
    backend.wake()
    whole = await task
    assert (now.ids, now.logprobs, now.finish_reason) == (whole.ids[:6], whole.logprobs[:6], "abort")


@pytest.mark.parametrize("used", [True, False])
async def test_what_a_call_leaves_while_it_is_read_counts_once(*, used: bool) -> None:
    """Its version is asked for, which takes time; meanwhile it ends."""
    arrived = Arrived()

    async def certain() -> str:
        if arrived.call is call:
            arrived.kept, arrived.call = ended if used else None, None
        return "1"

    call = arrived.call = CallTokens("b", most=9, before="1", certain=certain)
    call.add([1, 2], [-0.5, -0.5])
    call.counted("b", 2)
    ended = Completion(ids=[1, 2], logprobs=[-0.5, -0.5], finish_reason="abort", backend="b")
    assert await arrived.so_far() == (ended if used else None)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)
