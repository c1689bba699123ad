"""Servers of OpenAI's completions route that are not vLLM: where they put ids, and what is refused."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from prorl_mq.process.http_server import HttpRequest, HttpResponse
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import made_up_logprobs
from prorl_mq.testing.wire import COMPLETIONS
from tests.unit.workers.inference.conftest import info, request
from workers.inference.assignment import WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.probe import probe
from workers.inference.protocol import InferenceError, MalformedAnswer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def plain() -> AsyncIterator[FakeBackend]:
    async with FakeBackend(routes={COMPLETIONS}) as made:
        yield made


@pytest.mark.parametrize("place", ["token_ids", "logprobs", "content"])
async def test_ids_are_found_where_servers_put_them(clients: InferenceClients, plain: FakeBackend, place: str) -> None:
    plain.ids_in = place
    found = await probe(clients, plain.address)
    assert found.info.protocol is WireProtocol.COMPLETIONS
    answer = await clients.generate(found.info, request())
    assert len(answer.ids) == 8
    assert answer.logprobs == made_up_logprobs(answer.ids)


async def test_a_server_that_returns_text_alone_is_refused_with_what_it_lacks_and_what_to_do(
    clients: InferenceClients, plain: FakeBackend
) -> None:
    plain.ids_in = "nowhere"
    with pytest.raises(
        InferenceError, match=rf"{plain.address}: /v1/completions returned no token ids\..* vLLM 0\.10\.2"
    ):
        await probe(clients, plain.address)


@pytest.mark.parametrize(
    ("logprobs", "said"),
    [
        (None, "returned ids and no log-probabilities"),
        ({"token_logprobs": [-1.0, None], "token_ids": [3, 4]}, "log-probability 1 is null"),
        ({"token_logprobs": [-1.0], "token_ids": [3, 4]}, "2 ids but 1 log-probabilities"),
        ({"token_logprobs": [-1.0, -2.0], "token_ids": [4, 3]}, "belong to other ids"),
        ({"content": [{"id": 3, "logprob": -1.0}]}, "belong to other ids"),
        ({"token_logprobs": [-1.0, -2.0], "tokens": ["token_id:4", "token_id:3"]}, "belong to other ids"),
        ({"content": [{"id": 3, "logprob": -1.0}, {"id": 4, "logprob": None}]}, "log-probability 1 is null"),
    ],
)
async def test_an_answer_whose_parts_do_not_agree_is_malformed(
    clients: InferenceClients, plain: FakeBackend, logprobs: object, said: str
) -> None:
    choice = {"index": 0, "text": "", "finish_reason": "length", "token_ids": [3, 4], "logprobs": logprobs}

    async def answered(_request: HttpRequest) -> HttpResponse:
        return HttpResponse(body=msgspec.json.encode({"choices": [choice]}))

    plain.server.handler = answered
    with pytest.raises(MalformedAnswer, match=said):
        await clients.generate(info(plain, WireProtocol.COMPLETIONS), request())


@pytest.mark.parametrize("text", ["42", "token_id:", "token_id:x", "id:42", f"token_id:{'9' * 5000}"])
async def test_a_token_whose_text_is_digits_is_not_read_as_an_id(
    clients: InferenceClients, plain: FakeBackend, text: str
) -> None:
    """A server that returns text alone is refused, also where all of it is numbers."""
    told = {"tokens": [text], "token_logprobs": [-1.0]}

    async def answered(_request: HttpRequest) -> HttpResponse:
        choice = {"index": 0, "text": text, "finish_reason": "length", "logprobs": told}
        return HttpResponse(body=msgspec.json.encode({"choices": [choice]}))

    plain.server.handler = answered
    with pytest.raises(MalformedAnswer, match="returned no token ids"):
        await clients.generate(info(plain, WireProtocol.COMPLETIONS), request())
