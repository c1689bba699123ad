"""Each wire protocol, against a backend that speaks all of them."""

import asyncio
from typing import Any

import msgspec
import pytest

from prorl_mq.process.http_server import HttpRequest, HttpResponse
from prorl_mq.schema.turns import CompletionSpan
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import Reply, made_up_logprobs
from prorl_mq.testing.wire import SGLANG_GENERATE, FakeFault
from tests.unit.workers.inference.conftest import PROMPT, info, request
from workers.inference.assignment import WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.protocol import (
    BackendRefused,
    Completion,
    ContextFull,
    InferenceError,
    MalformedAnswer,
)
from workers.inference.protocols.answers import check_tokens, decode

pytestmark = pytest.mark.anyio
VLLM, COMPLETIONS, PRORL = WireProtocol.VLLM_GENERATE, WireProtocol.COMPLETIONS, WireProtocol.PRORL_GENERATE
SGLANG = WireProtocol.SGLANG_GENERATE
every_protocol = pytest.mark.parametrize("protocol", list(WireProtocol))


@every_protocol
async def test_ids_and_logprobs_arrive_bit_for_bit(
    clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol
) -> None:
    """The trainer computes importance ratios from them: a changed last digit is a changed gradient."""
    logprobs = [-0.1, -1e-17, -5.1800665855407715, -9999.0]
    backend.reply = lambda _prompt, _params: Reply(ids=[3, 3, 900, 2], logprobs=logprobs)
    answer = await clients.generate(info(backend, protocol), request(stop_token_ids=[2]))
    version = ("default", "default") if protocol in {VLLM, SGLANG} else None
    assert answer == Completion(
        ids=[3, 3, 900, 2],
        logprobs=logprobs,
        finish_reason="stop",
        stop_token=2,
        backend=backend.address,
        version=version,
        spans=[CompletionSpan(start=0, end=4, backend=backend.address, version=version)],
        prompt_tokens=None if protocol is PRORL else len(PROMPT),
        cached_tokens=None if protocol is PRORL else 0,
        seconds=answer.seconds,
    )
    assert 0 < answer.seconds < 60


@every_protocol
async def test_a_backend_sees_exactly_what_was_asked(
    clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol
) -> None:
    await clients.generate(info(backend, protocol), request(top_p=0.9, top_k=20, stop_token_ids=[2, 5], seed=0))
    call = backend.requests[0].call
    assert list(call.prompt_ids) == PROMPT
    params = call.params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (8, 1.0, 0.9, 20)
    assert (params.seed, list(params.stop_token_ids)) == (0, [2, 5])
    neutral = (params.min_p, params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    assert neutral == (0.0, 1.0, 0.0, 0.0)
    assert call.model == (None if protocol is SGLANG else "policy")


@every_protocol
async def test_all_protocols_give_the_same_answer_for_the_same_seed(
    clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol
) -> None:
    first = await clients.generate(info(backend), request())
    second = await clients.generate(info(backend, protocol), request())
    assert (second.ids, second.logprobs) == (first.ids, first.logprobs)


@every_protocol
async def test_a_completion_that_fills_its_limit_ends_by_length(
    clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol
) -> None:
    answer = await clients.generate(info(backend, protocol), request())
    assert (answer.finish_reason, answer.stop_token, len(answer.ids)) == ("length", None, 8)


async def test_the_older_shape_of_logprobs_is_read(clients: InferenceClients, backend: FakeBackend) -> None:
    """vLLM up to 0.31 names ids as `token_id:N` and tells no weight versions."""
    backend.old_shape = True
    answer = await clients.generate(info(backend), request())
    assert answer.logprobs == made_up_logprobs(answer.ids)
    assert answer.version is None


async def test_a_change_of_weights_within_a_turn_is_recorded_as_from_and_to(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    await backend.pause()
    async with asyncio.TaskGroup() as group:
        turn = group.create_task(clients.generate(info(backend), request(max_tokens=100)))
        await backend.wait_running(1)
        backend.set_version("step-2", share=0.5)
        backend.resume()
    answer = turn.result()
    assert answer.version == ("default", "step-2")
    assert [(span.start, span.end, span.version) for span in answer.spans] == [
        (0, 50, ("default", "default")),
        (50, 100, ("step-2", "step-2")),
    ]


async def test_cached_tokens_rise_when_a_turn_repeats_the_prefix(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    first = await clients.generate(info(backend), request(prompt_ids=list(range(40))))
    prompt = [*range(40), *first.ids, 1, 2, 3]
    second = await clients.generate(info(backend), request(prompt_ids=prompt))
    assert (first.cached_tokens, second.cached_tokens) == (0, 48)


async def test_another_cache_salt_finds_no_old_cache(clients: InferenceClients, backend: FakeBackend) -> None:
    """Entries computed under old weights must not be read under new ones."""
    prompt = list(range(40))
    await clients.generate(info(backend, cache_salt="1"), request(prompt_ids=prompt))
    same = await clients.generate(info(backend, cache_salt="1"), request(prompt_ids=prompt))
    new = await clients.generate(info(backend, cache_salt="2"), request(prompt_ids=prompt))
    assert (same.cached_tokens, new.cached_tokens) == (32, 0)


MALFORMED = [
    (VLLM, FakeFault.WRONG_LENGTHS),
    (VLLM, FakeFault.WRONG_IDS),
    (VLLM, FakeFault.OUT_OF_ORDER),
    (VLLM, FakeFault.WRONG_VERSIONS),
    (VLLM, FakeFault.NAN),
    (VLLM, FakeFault.NO_LOGPROBS),
    (VLLM, FakeFault.WRONG_PROMPT),
    (VLLM, FakeFault.GARBAGE),
    (COMPLETIONS, FakeFault.WRONG_LENGTHS),
    (COMPLETIONS, FakeFault.WRONG_IDS),
    (COMPLETIONS, FakeFault.OUT_OF_ORDER),
    (COMPLETIONS, FakeFault.NAN),
    (COMPLETIONS, FakeFault.NO_LOGPROBS),
    (COMPLETIONS, FakeFault.WRONG_PROMPT),
    (COMPLETIONS, FakeFault.GARBAGE),
    (SGLANG, FakeFault.WRONG_LENGTHS),
    (SGLANG, FakeFault.WRONG_IDS),
    (SGLANG, FakeFault.OUT_OF_ORDER),
    (SGLANG, FakeFault.WRONG_VERSIONS),
    (SGLANG, FakeFault.NAN),
    (SGLANG, FakeFault.NO_LOGPROBS),
    (SGLANG, FakeFault.WRONG_PROMPT),
    (SGLANG, FakeFault.GARBAGE),
    (PRORL, FakeFault.WRONG_LENGTHS),
    (PRORL, FakeFault.NAN),
    (PRORL, FakeFault.NO_LOGPROBS),
    (PRORL, FakeFault.GARBAGE),
]


@pytest.mark.parametrize(("protocol", "fault"), MALFORMED)
async def test_an_answer_that_does_not_fit_together_is_malformed(
    clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol, fault: FakeFault
) -> None:
    """Such an answer must never reach a trajectory; the next one may be fine, so it is retryable."""
    backend.fail_next(fault)
    with pytest.raises(MalformedAnswer, match=backend.address) as caught:
        await clients.generate(info(backend, protocol), request())
    assert caught.value.retryable
    assert len((await clients.generate(info(backend, protocol), request())).ids) == 8


@pytest.mark.parametrize("logprob", [float("inf"), float("-inf"), float("nan")])
async def test_a_logprob_that_is_not_finite_is_malformed(
    clients: InferenceClients, backend: FakeBackend, logprob: float
) -> None:
    backend.reply = lambda _prompt, _params: Reply(ids=[3, 4], logprobs=[-1.0, logprob])
    with pytest.raises(MalformedAnswer):
        await clients.generate(info(backend), request())


async def test_no_tokens_at_all_are_malformed(clients: InferenceClients, backend: FakeBackend) -> None:
    backend.reply = lambda _prompt, _params: Reply(ids=[])
    with pytest.raises(MalformedAnswer, match="no ids"):
        await clients.generate(info(backend), request())


def test_more_tokens_than_asked_for_are_malformed() -> None:
    with pytest.raises(MalformedAnswer, match="3 ids, more than the 2 asked for"):
        check_tokens("b", [1, 2, 3], [-1.0, -1.0, -1.0], finish="length", max_tokens=2)


@pytest.mark.parametrize("ids", [[-1], [5, 1 << 31], [1 << 40]])
def test_ids_that_no_vocabulary_has_are_malformed(ids: list[int]) -> None:
    with pytest.raises(MalformedAnswer, match="which no vocabulary has"):
        check_tokens("b", ids, [-1.0] * len(ids), finish="stop", max_tokens=2)


def test_an_answer_of_brackets_is_malformed() -> None:
    with pytest.raises(MalformedAnswer):
        decode("b", msgspec.json.Decoder(dict[str, Any]), b'{"a": ' + b"[" * 100_000)


async def test_an_unknown_finish_reason_is_malformed(clients: InferenceClients, backend: FakeBackend) -> None:
    backend.reply = lambda _prompt, _params: Reply(ids=[3], finish_reason="error")
    with pytest.raises(MalformedAnswer, match="finish_reason 'error'"):
        await clients.generate(info(backend), request())


@every_protocol
async def test_a_wrong_request_is_refused_and_not_retryable(
    clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol
) -> None:
    backend.fail_next(FakeFault.REFUSED)
    with pytest.raises(BackendRefused, match="400") as caught:
        await clients.generate(info(backend, protocol), request())
    assert not caught.value.retryable


@every_protocol
async def test_a_prompt_that_fills_the_backends_context_is_told_apart(
    clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol
) -> None:
    backend.context_tokens = 4
    with pytest.raises(ContextFull, match="maximum context length is 4 tokens"):
        await clients.generate(info(backend, protocol), request(prompt_ids=[1, 2, 3, 4]))


@every_protocol
@pytest.mark.parametrize("fault", [FakeFault.BUSY, FakeFault.ERROR, FakeFault.RESET, FakeFault.CUT])
async def test_a_failing_backend_is_a_retryable_error_that_names_it(
    clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol, fault: FakeFault
) -> None:
    backend.fail_next(fault)
    with pytest.raises(InferenceError, match=backend.address) as caught:
        await clients.generate(info(backend, protocol), request())
    assert type(caught.value) is InferenceError
    assert caught.value.retryable
    assert backend.states() == ["failed"]


async def test_a_closed_route_says_which_flag_opens_it(clients: InferenceClients) -> None:
    async with FakeBackend(routes={"/v1/completions"}) as backend:
        with pytest.raises(InferenceError, match="--enable-scale-out") as caught:
            await clients.generate(info(backend), request())
        assert caught.value.retryable


async def test_nobody_listening_is_a_retryable_error(clients: InferenceClients, backend: FakeBackend) -> None:
    await backend.stop()
    with pytest.raises(InferenceError, match="cannot connect"):
        await clients.generate(info(backend), request())


@every_protocol
async def test_an_answer_that_drips_is_given_up_after_the_limit(
    clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol
) -> None:
    """Bytes that keep coming are no progress."""
    backend.fail_next(FakeFault.DRIP)
    with pytest.raises(InferenceError, match=r"no complete answer within 0\.2 s"):
        await clients.generate(info(backend, protocol), request(answer_s=0.2))


@every_protocol
async def test_a_hanging_backend_is_given_up_after_the_limit_and_its_request_dropped(
    clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol
) -> None:
    backend.fail_next(FakeFault.HANG)
    with pytest.raises(InferenceError, match=r"no complete answer within 0\.1 s"):
        await clients.generate(info(backend, protocol), request(answer_s=0.1))
    await backend.wait_running(0)
    assert backend.states() == ["gone"]


CUT = {"token_ids": [3], "finish_reason": "length"}
ANSWERS: dict[WireProtocol, dict[str, Any]] = {
    VLLM: {"choices": [{**CUT, "logprobs": {"content": [{"token_id": 3, "logprob": -1}]}}]},
    SGLANG: {
        "output_ids": [3],
        "meta_info": {"finish_reason": {"type": "length"}, "output_token_logprobs": [[-1, 3, None]]},
    },
    COMPLETIONS: {"choices": [{**CUT, "logprobs": {"tokens": ["x"], "token_logprobs": [-1]}}]},
    PRORL: {"response_ids": [3], "logprobs": [-1]},
}
NEEDED = [
    (VLLM, "choices"), (VLLM, "choices.0.token_ids"), (VLLM, "choices.0.finish_reason"), (VLLM, "choices.0.logprobs"),
    (VLLM, "choices.0.logprobs.content.0.logprob"), (VLLM, "choices.0.logprobs.content.0.token_id"),
    (SGLANG, "meta_info"), (SGLANG, "meta_info.finish_reason"), (SGLANG, "meta_info.output_token_logprobs"),
    (COMPLETIONS, "choices"), (COMPLETIONS, "choices.0.token_ids"), (COMPLETIONS, "choices.0.finish_reason"),
    (COMPLETIONS, "choices.0.logprobs"), (COMPLETIONS, "choices.0.logprobs.token_logprobs"),
    (PRORL, "response_ids"), (PRORL, "logprobs"),
]  # fmt: skip


def without(answer: Any, path: str) -> Any:
    """A copy of an answer that lacks a field."""
    made = at = msgspec.json.decode(msgspec.json.encode(answer))
    *way, last = path.split(".")
    for part in way:
        at = at[int(part)] if part.isdigit() else at[part]
    del at[last]
    return made


async def answered(clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol, body: Any) -> Completion:
    async def handler(_request: HttpRequest) -> HttpResponse:
        return HttpResponse(body=msgspec.json.encode(body))

    backend.server.handler = handler
    return await clients.generate(info(backend, protocol), request())


@pytest.mark.parametrize(("protocol", "path"), NEEDED)
async def test_an_answer_that_lacks_a_field_is_malformed(
    clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol, path: str
) -> None:
    whole = await answered(clients, backend, protocol, ANSWERS[protocol])
    assert (whole.ids, whole.logprobs) == ([3], [-1.0])
    with pytest.raises(MalformedAnswer, match=backend.address):
        await answered(clients, backend, protocol, without(ANSWERS[protocol], path))


@pytest.mark.parametrize("protocol", [VLLM, SGLANG])
async def test_a_turn_that_is_aborted_by_its_id_keeps_what_it_has_sampled(
    clients: InferenceClients, backend: FakeBackend, protocol: WireProtocol
) -> None:
    if protocol is SGLANG:
        backend.routes = {SGLANG_GENERATE}
    await backend.pause()
    call = asyncio.create_task(clients.generate(info(backend, protocol), request(request_id="a")))
    other = asyncio.create_task(clients.generate(info(backend, protocol), request(request_id="a1")))
    await backend.wait_running(2)
    await clients.abort(info(backend, protocol), "a")
    answer = await call
    assert (answer.finish_reason, len(answer.ids)) == ("abort", len(answer.logprobs))
    assert not other.done()
    backend.resume()
    assert (await other).finish_reason == "length"
