"""API keys of backends: from a file to the backends that it names, and to nobody and nowhere else."""

import asyncio
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prorl_mq.duties.backend_control import BackendControl, ControlFailed
from prorl_mq.duties.load_weights import Weights
from prorl_mq.duties.probe_backends import BackendHealth
from prorl_mq.errors import ConfigurationError
from prorl_mq.process.backend_keys import BackendKeys, keys_from
from prorl_mq.process.http_server import HttpRequest, HttpResponse
from prorl_mq.process.logs import configure
from prorl_mq.rules.reach import Reach
from prorl_mq.store import pools as backends
from prorl_mq.testing.wire import SGLANG_GENERATE, VLLM_GENERATE, FakeFault
from tests.pool.conftest import attempt, in_run, turn
from tests.support.queue import POOL
from workers.inference.__main__ import look
from workers.inference.clients import InferenceClients
from workers.inference.probe import probe
from workers.inference.protocol import InferenceError
from workers.stages.backends import Pools

pytestmark = pytest.mark.anyio
KEY = "sk-Geheim0123456789"
Keys = Callable[..., BackendKeys]


@pytest.fixture
def made_keys(tmp_path: Path) -> Keys:
    def made(pattern: str = "127.0.0.1", key: str = KEY, mode: int = 0o600) -> BackendKeys:
        path = tmp_path / "keys.toml"
        path.write_text(f'[[keys]]\nbackends = ["{pattern}"]\nkey = "{key}"\n')
        path.chmod(mode)
        return keys_from({"PRORL_BACKEND_KEYS": str(path)})

    return made


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """All that any logger says, down to DEBUG."""
    text, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(text), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.mark.parametrize("routes", [{VLLM_GENERATE}, {SGLANG_GENERATE}])
async def test_every_call_has_the_key_and_nothing_kept_or_said_does(queue, fakes, made_keys, said, routes) -> None:
    """Probes, turns, aborts, health, weights; then all of Redis and all of the log are read for it."""
    fake = await fakes(api_key=KEY, routes=routes)
    known = made_keys()
    control = BackendControl(keys=known)
    async with InferenceClients(keys=known) as clients:
        await backends.add(queue.store, POOL, fake.address)
        [held] = await in_run(queue)
        fake.fail_next(FakeFault.ERROR)
        assert len((await turn(attempt(Pools(queue.store, clients), held))).ids) == 4
        await BackendHealth(queue.store, control).turn()
        await queue.store.announce(POOL, 7, "keep", "/weights/7")
        await Weights(queue.store, control).turn()
        [told] = (await backends.policy_status(queue.store, POOL)).backends
        assert (told.step, told.serves) == ("done", "7")
    await control.aclose()
    kept = [await queue.command("DUMP", key) for key in await queue.command("KEYS", "*")]
    assert len(kept) > 5
    assert not any(KEY.encode() in value for value in kept)
    assert "127.0.0.1" in said.getvalue(), "the log was read"
    assert KEY not in said.getvalue()


async def test_without_a_key_the_error_names_the_backend_and_what_to_write_where(fakes, made_keys, capsys) -> None:
    fake = await fakes(api_key=KEY)
    assert await look(fake.address) == 1
    assert f"backend {fake.address} answered 401: it wants an API key" in capsys.readouterr().out
    with pytest.raises(ControlFailed, match="PRORL_BACKEND_KEYS"):
        await BackendControl().resume(fake.address)


async def test_a_wrong_key_is_said_with_its_file_and_without_the_key(fakes, made_keys) -> None:
    fake, wrong = await fakes(api_key=KEY), "sk-another-one"
    async with InferenceClients(keys=made_keys(key=wrong)) as clients:
        with pytest.raises(InferenceError, match=r"it refuses the API key that .*keys\.toml has for it") as caught:
            await probe(clients, fake.address)
    assert wrong not in str(caught.value)


async def test_a_server_that_repeats_the_key_in_an_error_is_not_quoted_with_it(fakes, made_keys) -> None:
    fake = await fakes()

    async def repeats(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=500, body=request.headers["authorization"].encode())

    fake.server.handler = repeats
    async with InferenceClients(keys=made_keys()) as clients:
        with pytest.raises(InferenceError) as caught:
            await probe(clients, fake.address)
    assert "Bearer [key]" in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("hidden", [True, False], ids=["hidden", "a control without"])
async def test_an_answer_that_is_no_http_and_begins_with_the_key_is_not_quoted(
    made_keys, said, monkeypatch, hidden: bool
) -> None:
    """An address of another service, which sends back what it cannot read."""

    async def repeats(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        writer.write(next(line for line in request.split(b"\r\n") if line.lower().startswith(b"auth")) + b"\r\n\r\n")
        writer.close()

    configure({})
    if not hidden:
        monkeypatch.setattr(BackendKeys, "quoted", lambda _, _address, words: words)
    server = await asyncio.start_server(repeats, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, InferenceClients(keys=made_keys()) as clients:
        with pytest.raises(InferenceError, match="its answer cannot be read") as caught:
            await probe(clients, address)
        control = BackendControl(keys=made_keys())
        with pytest.raises(ControlFailed):
            await control.resume(address)
        await control.aclose()
    assert "illegal status line" in said.getvalue() or hidden
    assert (KEY in str(caught.value), KEY in said.getvalue()) == (not hidden, not hidden)


async def test_a_tenants_backend_gets_no_key_wherever_it_is(fakes, made_keys) -> None:
    """Else a tenant would add a server of its own at an address that the file names, and read the key there."""
    fake = await fakes()
    seen = []

    async def noting(request: HttpRequest) -> HttpResponse:
        seen.append(request.headers.get("authorization"))
        return HttpResponse(status=500)

    fake.server.handler = noting
    for reach in (Reach(declared=("127.0.0.0/8",)), None):
        async with InferenceClients(keys=made_keys()) as clients:
            clients.transport.judge(fake.address, reach)
            with pytest.raises(InferenceError):
                await probe(clients, fake.address)
        control = BackendControl(keys=made_keys())
        await control.alive(fake.address, reach)
        await control.aclose()
        expected = None if reach is not None else f"Bearer {KEY}"  # the control: the operator's own gets it
        assert set(seen) == {expected}
        seen.clear()


async def test_a_tenant_is_told_that_its_backend_gets_no_key_and_nothing_of_the_file(fakes, made_keys) -> None:
    fake, reach = await fakes(api_key=KEY), Reach(declared=("127.0.0.0/8",))
    async with InferenceClients(keys=made_keys()) as clients:
        clients.transport.judge(fake.address, reach)
        with pytest.raises(InferenceError, match="a tenant's backend gets none") as caught:
            await probe(clients, fake.address)
    assert "toml" not in str(caught.value)
    with pytest.raises(ControlFailed, match="a tenant's backend gets none"):
        await BackendControl(keys=made_keys()).resume(fake.address, reach)


@pytest.mark.parametrize(
    ("pattern", "address", "sent"),
    [
        ("*.gpu.cluster:8000-8999", "http://n7.gpu.cluster:8001", True),
        ("*.gpu.cluster:8000-8999", "http://n7.gpu.cluster:9000", False),
        ("*.gpu.cluster", "http://gpu.cluster.evil.org:80", False),
        ("api.example.com:443", "https://api.example.com/v1", True),
        ("api.example.com:443", "http://api.example.com/v1", False),
        ("10.1.0.0/16", "http://10.1.2.3:8000", True),
        ("10.1.0.0/16", "http://10.2.2.3:8000", False),
    ],
)
def test_a_key_goes_to_the_addresses_of_its_entry(made_keys, pattern: str, address: str, sent: bool) -> None:
    assert made_keys(pattern).of(address) == (KEY if sent else None)


def test_a_file_that_others_can_read_is_refused(made_keys) -> None:
    with pytest.raises(ConfigurationError, match="can be read by others: chmod 600"):
        made_keys(mode=0o640)


def test_a_file_that_is_wrong_is_refused_without_its_words(tmp_path: Path, made_keys) -> None:
    path = tmp_path / "bad.toml"
    path.touch(0o600)
    for text in (f"key = {KEY}", f'[[keys]]\nkey = "{KEY}"\n', f'[[keys]]\nbackends = []\nkey = "{KEY}"\n'):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=r"bad\.toml") as caught:
            keys_from({"PRORL_BACKEND_KEYS": str(path)})
        assert KEY not in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        keys_from({"PRORL_BACKEND_KEYS": str(tmp_path / "gone")})
    assert KEY not in repr(made_keys()._entries)
