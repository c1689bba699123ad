"""The same promises, kept with a real vLLM.

PRORL_VLLM_URL names one that runs, with the settings of ops/vllm-serve.sh. Without it the tests start one with the
tiny model from what ops/vllm-cpu.sh left in the state directory (PRORL_STATE_DIR, default .state), and stop it again.
"""

import asyncio
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from prorl_mq import backends
from prorl_mq.backend_control import BackendControl
from prorl_mq.connection import RedisSettings, connect
from prorl_mq.keys import Keys
from prorl_mq.maintenance.weights import Weights
from tests.inference.conftest import cancelled, request
from tests.support.queue import POOL, Queue
from workers.inference.abort import ROUTES, Aborter
from workers.inference.assignment import BackendInfo, FixedAssigner, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.probe import Probed, probe
from workers.inference.protocol import BackendRefused

# One process runs them all: they share one server.
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("vllm"),
]
ROOT = Path(__file__).parents[2]
READY_S = 180


def _free_port() -> int:
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        return int(probe_socket.getsockname()[1])


def _wait_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address + "/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            pass
        try:  # vLLM gives no sign of being ready but an answer: ask twice a second, unless it ends first
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
        break
    pytest.fail(f"vLLM did not start within {READY_S} s: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def vllm_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if url := os.environ.get("PRORL_VLLM_URL"):
        yield url
        return
    state = Path(os.environ.get("PRORL_STATE_DIR", ROOT / ".state"))
    if not (state / "vllm/bin/vllm").exists() or not (state / "models/tiny/tokenizer_config.json").exists():
        missing = f"no vLLM in {state}: run ops/vllm-cpu.sh {state}, or set PRORL_VLLM_URL"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    port = _free_port()
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("wb") as sink:
        command = [str(ROOT / "ops/vllm-serve.sh"), str(state / "models/tiny"), str(port)]
        process = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True)
    try:
        _wait_ready(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def vllm_weights() -> Path:
    """The weights that it serves already: enough to see them loaded."""
    return Path(os.environ.get("PRORL_STATE_DIR", ROOT / ".state")).resolve() / "models/tiny"


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys) -> AsyncIterator[Queue]:
    client = connect(settings)
    yield Queue(client, keys)
    await client.aclose()


@pytest.fixture
async def vllm(clients: InferenceClients, vllm_address: str) -> Probed:
    return await probe(clients, vllm_address)


async def _running(clients: InferenceClients, address: str) -> float:
    text = (await clients.transport.get(address, "/metrics")).body.decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def _until_running(clients: InferenceClients, address: str, count: int) -> float:
    """Seconds until vLLM counts so many requests under way: its metrics are asked again and again."""
    started = time.perf_counter()
    async with asyncio.timeout(20):
        while await _running(clients, address) != count:
            pass
    return time.perf_counter() - started


async def test_probing_finds_the_token_route_and_processed_logprobs(clients: InferenceClients, vllm: Probed) -> None:
    assert vllm.info.protocol is WireProtocol.VLLM_GENERATE
    assert vllm.processed_logprobs is True
    assert vllm.version is not None
    assert vllm.max_model_len is not None
    assert vllm.info.model in vllm.models


async def test_both_protocols_give_the_same_ids_and_logprobs_for_a_seed(
    clients: InferenceClients, vllm: Probed
) -> None:
    fallback = BackendInfo(address=vllm.info.address, protocol=WireProtocol.COMPLETIONS, model=vllm.info.model)
    wanted = request(prompt_ids=list(range(20, 60)), max_tokens=24, temperature=0.8, top_p=0.95, top_k=50)
    first = await clients.generate(vllm.info, wanted)
    second = await clients.generate(fallback, wanted)
    assert (first.ids, first.logprobs) == (second.ids, second.logprobs)
    assert (first.prompt_tokens, second.prompt_tokens) == (40, 40)
    assert len(first.ids) == len(first.logprobs) <= 24


async def test_two_turns_of_delta_prompts_hit_the_prefix_cache(clients: InferenceClients, vllm: Probed) -> None:
    """The next prompt is prompt + completion + delta; were it not exact, the cache would not know it."""
    policy = StickyPolicy(job_id=f"turns-{os.getpid()}", token=1, assigner=FixedAssigner(vllm.info), clients=clients)
    salted = [time.time_ns() % 997 for _ in range(8)]  # a prompt that no earlier test has left in the cache
    prompt = [*salted, *(number % 900 + 20 for number in range(120))]
    cached = []
    for turn in range(3):
        answer = await policy.generate(prompt, max_tokens=48, temperature=1.0, seed=turn)
        assert answer.prompt_tokens == len(prompt)
        assert answer.version is not None
        assert answer.version[0] == answer.version[1]
        cached.append(answer.cached_tokens)
        prompt = [*prompt, *answer.ids, 30 + turn, 31, 32]
    assert cached[0] == 0
    assert cached[1] is not None
    assert cached[2] is not None
    assert 0 < cached[1] < cached[2]


async def test_a_stop_id_ends_the_turn_and_stays_in_the_ids(clients: InferenceClients, vllm: Probed) -> None:
    free = await clients.generate(vllm.info, request(max_tokens=16, seed=3))
    stop = free.ids[5]
    stopped = await clients.generate(vllm.info, request(max_tokens=16, seed=3, stop_token_ids=[stop]))
    place = list(free.ids).index(stop)
    assert list(stopped.ids) == list(free.ids[: place + 1])
    assert (stopped.finish_reason, stopped.stop_token) == ("stop", stop)


async def test_a_wrong_request_is_refused(clients: InferenceClients, vllm: Probed) -> None:
    with pytest.raises(BackendRefused, match="400"):
        await clients.generate(vllm.info, request(prompt_ids=[10_000_000]))


@pytest.mark.parametrize("protocol", [WireProtocol.VLLM_GENERATE, WireProtocol.COMPLETIONS])
async def test_cancelling_stops_the_request_in_the_engine(
    clients: InferenceClients, vllm: Probed, protocol: WireProtocol
) -> None:
    backend = BackendInfo(address=vllm.info.address, protocol=protocol, model=vllm.info.model)
    long = request(request_id=f"cancel-{protocol.value}-{os.getpid()}", max_tokens=3500, stop_token_ids=[])
    task = asyncio.create_task(clients.generate(backend, long))
    await _until_running(clients, backend.address, 1)
    assert await cancelled(task)
    assert await _until_running(clients, backend.address, 0) < 2


async def test_an_abort_from_outside_keeps_the_partial_ids_and_the_turn_goes_on(
    clients: InferenceClients, vllm: Probed
) -> None:
    """As in a policy update of mode `abort`. The tiny model seldom samples its end token: retried with other seeds."""
    policy = StickyPolicy(job_id=f"abort-{os.getpid()}", token=1, assigner=FixedAssigner(vllm.info), clients=clients)
    address = vllm.info.address
    for seed in range(20):
        turn = asyncio.create_task(policy.generate([20, 21, 22], max_tokens=1500, temperature=1.0, seed=seed))
        running = asyncio.create_task(_until_running(clients, address, 1))
        await asyncio.wait({turn, running}, return_when=asyncio.FIRST_COMPLETED)
        if turn.done():  # it sampled its end before anybody saw it run
            running.cancel()
        await asyncio.gather(running, return_exceptions=turn.done())
        await clients.transport.post(address, "/abort_requests", b"{}")
        answer = await turn
        assert len(answer.ids) == len(answer.logprobs) <= 1500
        assert answer.finish_reason in {"stop", "length"}
        if policy.resumes:
            break
    assert policy.resumes >= 1


async def test_weights_are_swapped_in_the_middle_of_a_request_and_its_spans_say_where(
    clients: InferenceClients, vllm: Probed, queue: Queue, vllm_weights: Path
) -> None:
    """The service drives vLLM's own routes: pause, reload, name, empty, resume. Mode `keep`: the request goes on."""
    address, control = vllm.info.address, BackendControl()
    await backends.add(queue.broker, POOL, address)
    before = await control.version(address)
    for seed in range(20):
        version = 100 + seed
        wanted = request(request_id=f"swap-{seed}-{os.getpid()}", max_tokens=1500, seed=seed)
        call = asyncio.create_task(clients.generate(vllm.info, wanted))
        running = asyncio.create_task(_until_running(clients, address, 1))
        await asyncio.wait({call, running}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await queue.broker.announce(POOL, version, "keep", str(vllm_weights))
        await Weights(queue.broker, control).turn()
        answer = await call
        [told] = (await backends.policy_status(queue.broker, POOL)).backends
        assert (told.step, told.serves, told.error) == ("done", str(version), None)
        if len(answer.spans) == 2:
            break
        before = str(version)  # it sampled its end before the swap: the next seed
    await control.aclose()
    first, then = answer.spans
    assert (first.start, first.end, then.end) == (0, then.start, len(answer.ids))
    assert (first.version, then.version) == ((before, before), (str(version), str(version)))
    assert answer.version == (before, str(version))
    assert len(answer.ids) == len(answer.logprobs)


async def test_an_older_route_aborts_one_request_by_its_id_and_no_other(
    clients: InferenceClients, vllm: Probed
) -> None:
    """`/abort_requests` in dev mode, which is all that vLLM up to 0.31 has."""
    aborter = Aborter(clients.transport)
    aborter._routes[vllm.info.address] = ROUTES[1:]
    ids = [f"old-{number}-{os.getpid()}" for number in range(2)]
    cut, kept = (
        asyncio.create_task(clients.generate(vllm.info, request(request_id=each, max_tokens=3000, stop_token_ids=[])))
        for each in ids
    )
    await _until_running(clients, vllm.info.address, 2)
    await aborter.abort(vllm.info.address, ids[0])
    assert (await cut).finish_reason == "abort"
    assert not kept.done()
    assert await cancelled(kept)
