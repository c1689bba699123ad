"""Routed experts on the wire: asked for where a batch wants them, checked, and never taken where they say nothing."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import ExpertRoutes, RoutedExperts, Segment, Span, Trajectory, joined_routes
from prorl_mq.testing.experts import FakeExperts
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.wire import COMPLETIONS, PRORL_GENERATE, SGLANG_GENERATE, VLLM_GENERATE
from tests.unit.workers.inference.conftest import PROMPT, info, policy_over, request
from workers.inference import routes
from workers.inference.arrived import Arrived
from workers.inference.assignment import FixedAssigner, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.protocols import completions, vllm_generate
from workers.inference.routes import RoutesAsked, RoutesMisshapen, RoutesMissing, RoutesZero

pytestmark = pytest.mark.anyio
SMALL = RoutedExperts(layers=3, top_k=2, experts=8)
LARGE = RoutedExperts(layers=2, top_k=3, experts=300)
WIRES = [
    (VLLM_GENERATE, WireProtocol.VLLM_GENERATE),
    (COMPLETIONS, WireProtocol.COMPLETIONS),
    (SGLANG_GENERATE, WireProtocol.SGLANG_GENERATE),
]


def served(backend: FakeBackend, route: str, of: RoutedExperts, fault: str = "") -> FakeExperts:
    backend.routes = {route}
    backend.experts = FakeExperts(of=of, fault=fault, asked=[])
    return backend.experts


def numbers(found: ExpertRoutes | None) -> list[int]:
    assert found is not None
    return np.frombuffer(found.data, dtype="u1" if found.of.bytes_an_id == 1 else "<u2").tolist()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("of", [SMALL, LARGE])
@pytest.mark.parametrize(("route", "protocol"), WIRES)
async def test_the_rows_that_nobody_has_come_with_an_answer(backend, clients, route, protocol, of, streams) -> None:
    experts = served(backend, route, of)
    policy = policy_over(clients, assigner=FixedAssigner(info(backend, protocol)))
    more: dict[str, Any] = {"arrived": Arrived()} if streams else {}
    first = await policy.generate(PROMPT, max_tokens=6, temperature=1.0, routes=RoutesAsked(of), **more)
    assert numbers(first.routes) == experts.numbers([*PROMPT, *first.ids])
    start = len(PROMPT) + len(first.ids) - 1
    then = await policy.generate(
        [*PROMPT, *first.ids, 7, 8], max_tokens=4, temperature=1.0, routes=RoutesAsked(of, start)
    )
    whole = joined_routes(first.routes, then.routes)
    assert numbers(whole) == experts.numbers([*PROMPT, *first.ids, 7, 8, *then.ids])
    assert whole is not None
    assert whole.rows == len(PROMPT) + len(first.ids) + 2 + len(then.ids) - 1
    assert experts.asked == [(0, start), (start, whole.rows)]
    assert len(whole.data) == whole.rows * of.layers * of.top_k * (1 if of is SMALL else 2)


@pytest.mark.parametrize(("route", "protocol"), WIRES)
async def test_who_asks_for_none_sends_and_gets_nothing(backend, clients, route, protocol) -> None:
    backend.routes = {route}
    assert (await clients.generate(info(backend, protocol), request())).routes is None
    sent = json.dumps(backend.requests[-1].call.raw)
    assert "routed" not in sent


FAULTS = [
    ("missing", RoutesMissing, "sends no routed experts"),
    ("zero", RoutesZero, r"token 5 .*vllm#44116.*--moe-backend triton"),
    ("unseen", RoutesZero, "the routes of token 5 are zeros"),
    ("short", RoutesMisshapen, "sampling.routed_experts"),
    ("layers", RoutesMisshapen, "sampling.routed_experts"),
    ("beyond", RoutesMisshapen, "beyond the 8"),
]


@pytest.mark.parametrize(("fault", "error", "says"), FAULTS)
@pytest.mark.parametrize(("route", "protocol"), WIRES)
async def test_what_cannot_be_replayed_is_refused_by_name(
    backend, clients, route, protocol, fault, error, says
) -> None:
    served(backend, route, SMALL, fault)
    asked = request(prompt_ids=[*range(1, 9)], routes=RoutesAsked(SMALL, 5))
    with pytest.raises(error, match=says) as caught:
        await clients.generate(info(backend, protocol), asked)
    assert not caught.value.retryable
    assert backend.address in str(caught.value)


@pytest.mark.parametrize("fault", ["zero", "unseen"])
async def test_without_the_check_zeros_would_be_taken(backend, clients, monkeypatch, fault) -> None:
    """The control of the guard."""
    monkeypatch.setattr(routes, "_check_zeros", lambda *_: None)
    served(backend, VLLM_GENERATE, SMALL, fault)
    assert 0 in numbers((await clients.generate(info(backend), request(routes=RoutesAsked(SMALL)))).routes)


@pytest.mark.parametrize("fault", ["short", "layers", "beyond"])
async def test_without_the_checks_another_shape_would_be_taken(backend, clients, monkeypatch, fault) -> None:
    """The control of the guard."""
    monkeypatch.setattr(
        routes, "_checked", lambda _b, data, _w, asked, _t: ExpertRoutes(of=asked.of, start=asked.start, data=data)
    )
    monkeypatch.setattr(routes, "_WANTED", "")
    served(backend, SGLANG_GENERATE, SMALL, fault)
    completion = await clients.generate(info(backend, WireProtocol.SGLANG_GENERATE), request(routes=RoutesAsked(SMALL)))
    assert completion.routes is not None


async def test_one_expert_a_layer_may_be_the_first_one() -> None:
    """With one expert a token, zeros of few tokens are routes; those of many are not."""
    of = RoutedExperts(layers=4, top_k=1, experts=16)
    few, many = bytes(4 * 4 * 2), bytes(4 * 4 * 100)
    assert routes.read_int32("b", few, RoutesAsked(of), 3, "stop") is not None
    with pytest.raises(RoutesZero):
        routes.read_int32("b", many, RoutesAsked(of), 101, "stop")


async def test_negative_numbers_stand_for_tokens_that_were_not_seen() -> None:
    of = RoutedExperts(layers=1, top_k=2, experts=256)
    sent = np.array([[[1, 2]], [[-1, -1]]], dtype="<i4").tobytes()
    with pytest.raises(RoutesMisshapen, match="beyond the 256"):
        routes.read_int32("b", sent, RoutesAsked(of), 3, "stop")


async def test_prorls_route_has_none(backend, clients) -> None:
    backend.routes = {PRORL_GENERATE}
    with pytest.raises(RoutesMissing, match="vLLM or SGLang"):
        await clients.generate(info(backend, WireProtocol.PRORL_GENERATE), request(routes=RoutesAsked(SMALL)))


async def test_sglangs_openai_route_has_them_in_its_extension(clients) -> None:
    """As `CompletionResponse.sglext` of SGLang has it; the fake backend answers as vLLM there."""
    ids = [*PROMPT, 1, 2]
    told = FakeExperts(of=SMALL).numbers(ids)
    sent = base64.b64encode(np.array(told, dtype="<i4").tobytes()).decode()
    read = msgspec.json.decode(json.dumps({"routed_experts": sent}), type=dict[str, bytes])
    found = routes.read_int32("b", read["routed_experts"], RoutesAsked(SMALL), len(ids), "stop")
    assert numbers(found) == told


@pytest.mark.parametrize("kind", ["u1", "<u2", "<i2", "<i4", "<i8"])
async def test_numpys_own_files_are_read(kind) -> None:
    """As vLLM makes them: `numpy.save` in base64."""
    whole = np.arange(1, 1 + 4 * 3 * 2).reshape(4, 3, 2) % 8
    with io.BytesIO() as file:
        np.save(file, whole.astype(kind), allow_pickle=False)
        sent = file.getvalue()
    assert numbers(routes.read_npy("b", sent, RoutesAsked(SMALL), 5, "stop")) == whole.reshape(-1).tolist()
    with pytest.raises(RoutesMisshapen, match=r"no \.npy file"):
        routes.read_npy("b", b"x" + sent[1:], RoutesAsked(SMALL), 5, "stop")
    with io.BytesIO() as file:
        np.save(file, np.asfortranarray(whole.astype(kind)))
        by_columns = file.getvalue()
    with pytest.raises(RoutesMisshapen, match="by rows"):
        routes.read_npy("b", by_columns, RoutesAsked(SMALL), 5, "stop")


async def test_a_turn_that_is_cut_anywhere_has_all_routes(backend: FakeBackend, clients: InferenceClients) -> None:
    """Aborted calls bring their rows, lost ones bring none: what follows asks for those that are missing."""
    experts = served(backend, VLLM_GENERATE, SMALL)
    for cut in (0, 1, 4, 8):
        backend.flow.cut_next(cut)
        policy = policy_over(clients, backend, backend, max_tries=4)
        found = await policy.generate(
            PROMPT, max_tokens=8, temperature=1.0, routes=RoutesAsked(SMALL), arrived=Arrived()
        )
        made = await routes.whole(policy, PROMPT, found, {"routes": RoutesAsked(SMALL)})
        assert numbers(made.routes) == experts.numbers([*PROMPT, *found.ids]), cut
        backend.flow.clear()


async def test_the_last_rows_are_asked_for_where_no_call_brought_them(backend, clients) -> None:
    experts = served(backend, VLLM_GENERATE, SMALL)
    policy = policy_over(clients, backend)
    asked: dict[str, Any] = {"routes": RoutesAsked(SMALL)}
    found = await policy.generate(PROMPT, max_tokens=5, temperature=1.0, **asked)
    lost = msgspec.structs.replace(found, routes=None)
    made = await routes.whole(policy, PROMPT, lost, asked)
    assert numbers(made.routes) == experts.numbers([*PROMPT, *found.ids])
    assert backend.requests[-1].call.prompt_ids == [*PROMPT, *found.ids][:-1]  # which a full context has room for
    part = msgspec.structs.replace(found, routes=found.routes and found.routes.until(3))
    assert (await routes.whole(policy, PROMPT, part, asked)).routes == found.routes
    assert await routes.whole(policy, PROMPT, lost, {}) is lost
    count = len(backend.requests)
    assert (await routes.whole(policy, PROMPT, found, asked)) is found
    assert len(backend.requests) == count


def test_a_family_that_asks_for_none_is_refused() -> None:
    segment = Segment(
        prompt_ids=[1], response_ids=[2], loss_mask=[1], logprobs=[-1.0], spans=[Span(start=0, end=1, backend="b")]
    )
    made = Trajectory(segments=[segment], turns=[], stop_reason="stop")
    routes.check_kept(Sampling(), made)
    with pytest.raises(RoutesMissing, match="segment 0 has no routed experts"):
        routes.check_kept(Sampling(routed_experts=SMALL), made)
    kept = msgspec.structs.replace(segment, routes=ExpertRoutes(of=SMALL, start=0, data=bytes(6)))
    routes.check_kept(Sampling(routed_experts=SMALL), msgspec.structs.replace(made, segments=[kept]))


def test_a_sample_of_32k_tokens_has_24_6_megabytes() -> None:
    """The size that the documents name: 94 layers, 8 of at most 256 experts."""
    assert RoutedExperts(layers=94, top_k=8, experts=128).bytes_a_token * 32_768 == 24_641_536


ANSWERS = json.loads((Path(__file__).parent / "vllm_routes.json").read_text())


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
@pytest.mark.parametrize(("place", "wire"), [("token", vllm_generate._Answer), ("completions", completions._Answer)])
async def test_what_vllms_own_classes_say_is_read(kind: str, place: str, wire: Any) -> None:
    """Choices that `GenerateTokensChoice` and `CompletionResponseChoice` of vLLM 0.32.0 have written, with arrays of
    its `numpy2base64`: 6 tokens behind the third one, 2 layers, 3 experts.
    """
    told = ANSWERS[kind]
    read: Any = msgspec.json.decode(json.dumps({"choices": [told[place]]}), type=wire)
    [choice] = read.choices
    assert choice.token_ids == [8, 9, 10]
    of = RoutedExperts(layers=2, top_k=3, experts=256 if kind == "uint8" else 300)
    assert numbers(routes.read_npy("b", choice.routed_experts, RoutesAsked(of, 3), 10, "length")) == told["numbers"]
