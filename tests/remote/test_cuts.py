"""Links that are cut, and servers that are away: a call with a name happens once, and its result arrives."""

import asyncio
from pathlib import Path

import pytest

from sandbox.errors import LinkCut, NotNow, SandboxGone
from sandbox.lifetime import wire
from sandbox.protocol import Sandbox, SandboxSpec
from sandbox.remote import provider as provider_module
from sandbox.remote.box import RemoteDial
from sandbox.remote.provider import RemoteProvider
from tests.remote.machine import Machine
from tests.support.network import Network

pytestmark = pytest.mark.anyio
SPEC = SandboxSpec(owner="job test a b c")
LONG = "echo x >> times; touch began; sleep 1; wc -l < times"


async def began(box: Sandbox, test: str = "test -e began") -> None:
    async with asyncio.timeout(20):
        while (await box.run(["sh", "-c", test])).exit_code:
            await asyncio.sleep(0.05)


async def test_a_named_call_outlasts_a_cut(far: RemoteProvider, provider: RemoteProvider, proxy: Network) -> None:
    box = await far.create(SPEC)
    near = await provider.attach(box.handle)
    asked = asyncio.create_task(box.named("0.0").bash(LONG))
    await began(near)
    proxy.cut()
    assert (await asked).output.strip() == "1"


async def test_without_patience_a_cut_is_an_error(
    far: RemoteProvider, provider: RemoteProvider, proxy: Network
) -> None:
    """The control: the same call as sandboxes of a node make it."""
    box = await far.create(SPEC)
    near = await provider.attach(box.handle)
    line = wire.SandboxCalls(box.handle, RemoteDial(far.server))
    request = {"op": "bash", "act": "0.0/0", "timeout_s": 30, "is_input": False}
    asked = asyncio.create_task(line.call(request, LONG.encode(), timeout_s=30))
    await began(near)
    proxy.cut()
    with pytest.raises(LinkCut):
        await asked


async def test_a_call_without_a_name_ends_with_its_link_and_says_so(
    far: RemoteProvider, provider: RemoteProvider, proxy: Network
) -> None:
    box = await far.create(SPEC)
    near = await provider.attach(box.handle)
    asked = asyncio.create_task(box.run(["sh", "-c", "touch began; exec sleep 300"], timeout_s=600))
    await began(near)
    proxy.cut()
    with pytest.raises(LinkCut, match="was cut"):
        await asked
    await began(near, "! pgrep -x sleep")


async def test_an_idle_link_that_was_cut_costs_nothing(far: RemoteProvider, proxy: Network) -> None:
    box = await far.create(SPEC)
    assert (await box.bash("echo 1")).output == "1\n"
    proxy.cut()
    await asyncio.wait(set(far.server._links))
    assert (await box.bash("echo 2")).output == "2\n"


async def test_a_call_waits_for_a_network_that_is_away(
    far: RemoteProvider, provider: RemoteProvider, proxy: Network
) -> None:
    box = await far.create(SPEC)
    near = await provider.attach(box.handle)
    asked = asyncio.create_task(box.named("0.0").bash(LONG))
    await began(near)
    proxy.away = True
    proxy.cut()
    await proxy.refused.wait()
    await began(near, "pgrep -x sleep >/dev/null && exit 1; test $(wc -l < times) = 1")
    assert not asked.done()
    proxy.away = False
    assert (await asked).output.strip() == "1"


async def test_a_file_goes_in_and_out_over_cuts(
    far: RemoteProvider, proxy: Network, tmp_path: Path, machine: Machine
) -> None:
    box, source = await far.create(SPEC), tmp_path / "source"
    source.write_bytes(bytes(range(256)) * (64 << 10))
    asked = asyncio.create_task(box.upload(source, "big"))
    near = RemoteProvider("n2", machine.access())
    await began(await near.attach(box.handle), "ls | grep -q big")
    proxy.cut()
    await asked
    await box.download("big", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == source.read_bytes()
    await near.aclose()


async def test_a_create_whose_answer_is_lost_makes_one_sandbox(
    far: RemoteProvider, machine: Machine, proxy: Network
) -> None:
    await far.server.hello()
    proxy.loses = b"PUT "
    asked = asyncio.create_task(far.create(SPEC))
    async with asyncio.timeout(20):
        while not machine.served.listed("one", "test"):
            await asyncio.sleep(0.02)
    proxy.lost.set()
    box = await asked
    assert [each.name for each in machine.served.listed("one", "test")] == [box.handle.sandbox_id]


async def test_a_slow_server_is_asked_again_for_the_same(
    machine: Machine, provider: RemoteProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.remote.messages.SLOWEST_S", 0.2)
    slow, made = asyncio.Event(), machine.provider.create

    async def create(spec: SandboxSpec) -> Sandbox:
        await asyncio.wait_for(slow.wait(), 20)
        return await made(spec)

    monkeypatch.setattr(machine.provider, "create", create)
    asked = asyncio.create_task(provider.create(SPEC))
    done, _ = await asyncio.wait({asked}, timeout=1.0)
    assert not done
    slow.set()
    box = await asked
    assert [each.name for each in machine.served.listed("one", "test")] == [box.handle.sandbox_id]


async def test_a_server_that_is_away_makes_new_jobs_wait_and_not_fail(
    far: RemoteProvider, proxy: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_module, "CREATE_AWAY_S", 0.3)
    proxy.away = True
    with pytest.raises(NotNow, match="does not answer") as waits:
        await far.create(SPEC)
    assert waits.value.retry_after_s > 0


async def test_a_sandbox_that_dies_is_gone_and_no_cut(provider: RemoteProvider, machine: Machine) -> None:
    box = await provider.create(SPEC)
    asked = asyncio.create_task(box.named("0.0").bash("touch began; sleep 60"))
    await began(await provider.attach(box.handle))
    [state] = machine.served.listed("one", "test")
    await provider.server.delete(state.name)
    with pytest.raises(SandboxGone):
        await asked
