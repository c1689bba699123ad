"""Calls with images: one id for each on the way, and the answer's ids and places compared with ours."""

import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.wire import SGLANG_GENERATE
from tests.pictures.seeing import picture
from tests.unit.workers.inference.conftest import request
from workers.inference.assignment import Endpoint, WireProtocol
from workers.inference.clients import SHOWS_IMAGES, InferenceClients
from workers.inference.pictures import (
    ImagesDiffer,
    ImagesUnsupported,
    Picture,
    check_ids,
    check_read,
    collapsed,
    data_url,
    parts,
    without,
)
from workers.inference.policy import StickyPolicy
from workers.inference.protocol import Completion
from workers.inference.protocols.sglang_generate import SglangGenerate
from workers.inference.protocols.vllm_generate import VllmGenerate

pytestmark = pytest.mark.anyio
PAD = 11
IDS = [1, 9, PAD, PAD, PAD, 10, 9, PAD, 10, 2]
RED, BLUE = picture(90, 30), picture(30, 30, "blue")
SHOWN = [Picture(image=RED, start=2, length=3, pad=PAD), Picture(image=BLUE, start=7, length=1, pad=PAD)]
PLACES = {"image": [{"offset": 2, "length": 3}, {"offset": 7, "length": 1}]}
ANY: Any = None


def test_one_id_stands_for_an_image_on_the_way() -> None:
    endpoint = Endpoint(address="http://b", protocol=WireProtocol.VLLM_GENERATE)
    client = VllmGenerate(ANY, ANY)
    sent = msgspec.json.decode(client._encode(endpoint, request(prompt_ids=IDS, pictures=SHOWN), streams=False))
    assert sent["token_ids"] == [1, 9, PAD, 10, 9, PAD, 10, 2]
    assert [part["type"] for part in sent["content_parts"]] == ["image_url"] * 2
    assert all(part["url"].startswith("data:image/png;base64,") for part in sent["content_parts"])
    assert sent["return_token_ids"]
    plain = msgspec.json.decode(client._encode(endpoint, request(prompt_ids=IDS), streams=False))
    assert not {"content_parts", "return_token_ids"} & plain.keys()


def test_an_image_that_is_there_often_is_one_text_of_base64() -> None:
    many = [Picture(image=RED, start=at, length=1, pad=PAD) for at in range(8)]
    urls = [each["url"] for each in parts([*many, *SHOWN])]
    assert urls == [data_url(each.image) for each in (*many, *SHOWN)]
    assert len({id(each) for each in urls}) == 2


async def test_a_call_with_images_is_written_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: one of text is not, which would cost more than it takes."""
    threads: list[bool] = []

    def encode(*_: Any, **__: Any) -> bytes:
        threads.append(threading.current_thread() is not threading.main_thread())
        raise ImagesUnsupported("written")

    monkeypatch.setattr(VllmGenerate, "_encode", encode)
    client = VllmGenerate(ANY, ANY)
    endpoint = Endpoint(address="http://b", protocol=WireProtocol.VLLM_GENERATE)
    for asked in (request(prompt_ids=IDS, pictures=SHOWN), request(prompt_ids=IDS)):
        with pytest.raises(ImagesUnsupported):
            await client.generate(endpoint, asked)
    assert threads == [True, False]


@pytest.mark.parametrize(
    ("ids", "places", "error"),
    [
        (IDS, PLACES, None),
        (None, None, ImagesUnsupported),  # an older vLLM, which knows no content_parts
        ([1, 9, PAD, 10, 9, PAD, 10, 2], None, ImagesUnsupported),  # one that has left the images out
        (IDS, {"image": PLACES["image"][:1]}, ImagesDiffer),
        (IDS, {"image": PLACES["image"][::-1]}, ImagesDiffer),
        (IDS, {"audio": PLACES["image"]}, ImagesDiffer),
        ([*IDS[:4], *IDS[5:]], {"image": [{"offset": 2, "length": 2}, {"offset": 6, "length": 1}]}, ImagesDiffer),
        ([*IDS[:-1], 3], PLACES, ImagesDiffer),
    ],
)  # fmt: skip
def test_what_a_backend_has_read_must_be_what_the_record_holds(ids: Any, places: Any, error: Any) -> None:
    asked = request(prompt_ids=IDS, pictures=SHOWN)
    if error is None:
        check_read("http://b", asked, ids, places)
        return
    with pytest.raises(error, match="http://b"):
        check_read("http://b", asked, ids, places)


def test_ids_without_an_image_are_never_sent() -> None:
    with pytest.raises(ValueError, match="1 ids of a prompt stand for images that are not sent"):
        collapsed(IDS, SHOWN[:1])


@pytest.mark.parametrize("protocol", [each for each in WireProtocol if each not in SHOWS_IMAGES])
async def test_other_protocols_refuse_images_and_send_nothing(protocol: WireProtocol) -> None:
    async with InferenceClients(connect_s=1, answer_s=1) as clients:
        with pytest.raises(ImagesUnsupported, match=rf"the protocol {protocol} takes no images"):
            await clients.generate(
                Endpoint(address="http://127.0.0.1:1", protocol=protocol), request(prompt_ids=IDS, pictures=SHOWN)
            )


@pytest.fixture
async def sglang() -> AsyncIterator[FakeBackend]:
    """Which refuses every field that SGLang does not define. Its images take an id for each 28 by 28 pixels."""
    async with FakeBackend(routes={SGLANG_GENERATE}) as made:
        yield made


async def test_sglang_is_sent_one_id_for_each_image_and_tells_what_it_has_read(sglang: FakeBackend) -> None:
    asked = request(prompt_ids=IDS, pictures=SHOWN)
    endpoint = Endpoint(address=sglang.address, protocol=WireProtocol.SGLANG_GENERATE)
    sent = msgspec.json.decode(SglangGenerate(ANY, ANY)._encode(endpoint, asked, streams=False))
    assert sent["input_ids"] == [1, 9, PAD, 10, 9, PAD, 10, 2]
    assert sent["image_data"] == [data_url(RED), data_url(BLUE)]
    assert sent["return_prompt_token_ids"]
    plain = msgspec.json.decode(SglangGenerate(ANY, ANY)._encode(endpoint, request(prompt_ids=IDS), streams=False))
    assert not {"image_data", "return_prompt_token_ids"} & plain.keys()
    async with InferenceClients(connect_s=5, answer_s=30) as clients:
        found = await clients.generate(endpoint, asked)
        assert (found.ids != [], found.prompt_tokens) == (True, len(IDS))


@pytest.mark.parametrize("fewer", [False, True], ids=["another processor", "another text"])
async def test_an_sglang_that_has_read_other_ids_is_refused(sglang: FakeBackend, fewer: bool) -> None:
    """Also as many of them: it reads ids with images again from their text."""
    ids = [*IDS[:3], *IDS[4:]]
    narrow = [
        msgspec.structs.replace(SHOWN[0], length=2), msgspec.structs.replace(SHOWN[1], start=6),
    ]  # fmt: skip
    asked = request(prompt_ids=ids, pictures=narrow)
    endpoint = Endpoint(address=sglang.address, protocol=WireProtocol.SGLANG_GENERATE)
    if fewer:
        with pytest.raises(ImagesDiffer, match="which SGLang reads again from the text"):
            check_ids("http://b", request(prompt_ids=IDS, pictures=SHOWN), [*IDS[:-1], 3])
        return
    async with InferenceClients(connect_s=5, answer_s=30) as clients:
        with pytest.raises(ImagesDiffer, match="it has read 10 other ids with images than the 9 that were sent"):
            await clients.generate(endpoint, asked)


def test_an_sglang_that_tells_no_ids_is_refused() -> None:
    with pytest.raises(ImagesUnsupported, match="return_prompt_token_ids"):
        check_ids("http://b", request(prompt_ids=IDS, pictures=SHOWN), None)


async def test_the_rest_of_an_aborted_turn_is_asked_for_with_the_images() -> None:
    asked: list[Any] = []

    class Aborting:
        async def generate(self, _: Any, call: Any) -> Completion:
            asked.append(call)
            finish = "abort" if len(asked) == 1 else "stop"
            return Completion(ids=[5], logprobs=[-1.0], finish_reason=finish, backend="b")

    from workers.inference.assignment import FixedAssigner

    endpoint = Endpoint(address="http://b", protocol=WireProtocol.VLLM_GENERATE)
    policy = StickyPolicy(job_id="j", token="1", assigner=FixedAssigner(endpoint), clients=Aborting())
    found = await policy.generate(IDS, max_tokens=4, temperature=1.0, pictures=SHOWN)
    assert list(found.ids) == [5, 5]
    assert [list(call.prompt_ids) for call in asked] == [IDS, [*IDS, 5]]
    assert all(call.pictures == SHOWN for call in asked)


def test_a_completion_is_cut_in_front_of_a_placeholder() -> None:
    made = Completion(
        ids=[4, 5, PAD, 6], logprobs=[-1.0, -2.0, -3.0, -4.0], finish_reason="length", backend="b", stop_token=None
    )
    assert without(made, (), 3) is made
    cut = without(made, {PAD}, 3)
    assert (cut.ids, cut.logprobs, cut.finish_reason) == ([4, 5], [-1.0, -2.0], "stop")
