"""Services that would reach the server's machine or each other, names asked for twice, and servers that stand still."""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sandbox.errors import LinkCut, NotNow, SandboxError, SandboxStartFailed, SandboxUnavailable
from sandbox.isolators import bubblewrap, bubblewrap_argv
from sandbox.isolators.bubblewrap_argv import BubblewrapLayout, bubblewrap_options
from sandbox.lifetime import label
from sandbox.protocol import Sandbox, SandboxHandle, SandboxLimits, SandboxSpec
from sandbox.remote import provider as provider_module
from sandbox.remote.access import SERVER, TOKEN_FILE, ServerAccess, access_from
from sandbox.remote.http import RemoteServer, ServerAnswer
from sandbox.remote.messages import Hello, NewSandbox
from sandbox.remote.patience import patiently
from sandbox.remote.provider import RemoteProvider
from sandbox.serving import routes
from sandbox.serving.served import ServedKey
from sandbox.serving.tenants import tenants_in
from tests.remote.machine import TENANTS, Machine, serving, token_file

pytestmark = pytest.mark.anyio
NAME = "0123456789abcdef"
KEY = ServedKey("one", NAME)
WANTED = NewSandbox(service="s", owner="o")


@pytest.fixture
def image(machine: Machine) -> str:
    return small_image(machine.directory)


def small_image(directory: Path) -> str:
    """An image that starts once something has bound programs to it."""
    root = directory / "images" / "small"
    for name in ("usr/bin", "etc", "opt", "home", "var"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())
    return root.name


def binding(directory: Path) -> str:
    """A path that bubblewrap would read as several options."""
    return f"/etc\0--ro-bind\0{directory}\0/stolen\0--ro-bind\0/usr\0/usr"


async def test_a_path_with_options_in_it_is_refused(machine: Machine, provider: RemoteProvider, image: str) -> None:
    with pytest.raises(SandboxStartFailed, match="absolute paths"):
        await provider.create(SandboxSpec(owner="o", image=image, empty=[binding(machine.directory)]))


async def put(machine: Machine, wanted: NewSandbox) -> ServerAnswer:
    server = RemoteServer(machine.access())
    try:
        return await server.exchange("PUT", f"/sandboxes/{NAME}", msgspec.json.encode(wanted))
    finally:
        await server.aclose()


def test_an_answer_that_is_nested_without_end_is_nonsense() -> None:
    nested = b'{"protocol": 1, "x": ' + b"[" * 30_000 + b"]" * 30_000 + b"}"
    assert ServerAnswer(400, nested, 0.0).refusal.error == ""
    server = RemoteServer(access_from({SERVER: "http://127.0.0.1:1", TOKEN_FILE: "f"}))
    with pytest.raises(SandboxError, match="recursion"):
        server._read(ServerAnswer(200, nested, 0.0), Hello)


@pytest.mark.parametrize("guarded", [True, False])
async def test_bubblewrap_takes_no_path_for_options(monkeypatch: pytest.MonkeyPatch, guarded: bool) -> None:
    """The inner guard alone; without it, too, a file of the host is read."""

    def unguarded(layout: BubblewrapLayout) -> bytes:
        return "\0".join(bubblewrap_options(layout)).encode()

    monkeypatch.setattr(routes, "unfit", lambda _: "")
    monkeypatch.setattr(bubblewrap, "checked", lambda spec, **_: spec)
    if not guarded:
        monkeypatch.setattr(bubblewrap_argv, "options_data", unguarded)
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        directory = Path(name)
        os.chmod(directory, 0o755)  # noqa: PTH101 - for a sandbox's user, who is not this one where this one is root
        (directory / "secret").write_text("the host's")
        async with serving(Machine(directory)) as machine:
            wanted = msgspec.structs.replace(WANTED, image=small_image(directory), empty=[binding(directory)])
            answer = await put(machine, wanted)
            if guarded:
                assert (answer.status, "null character" in answer.refusal.message) == (500, True)
                assert label.labelled(machine.state_dir) == []
            else:
                placed = machine.served.find(KEY)
                assert placed is not None
                box = await machine.provider.attach(placed.handle)
                assert (await box.run(["cat", "/stolen/secret"])).stdout == b"the host's"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"image": "a\0b"}, "there is no image"),
        ({"image": "a" * 5_000}, "there is no image"),
        ({"image": "small", "writable": ["etc"]}, "absolute paths"),
        ({"image": "small", "empty": ["/etc/../.."]}, "absolute paths"),
        ({"environment": {"A": "b\0c"}}, "no program can have: 'A'"),
        ({"environment": {"A=B": "c"}}, "no program can have"),
        ({"environment": {"A": "x" * (2 << 20)}}, "1048576 are allowed"),
        ({"limits": SandboxLimits(memory_bytes=0)}, "limits are 1 or more"),
    ],
    ids=["image", "long image", "relative", "outside", "value", "name", "too large", "limits"],
)
async def test_what_no_sandbox_can_have_fails_and_does_not_wait(
    provider: RemoteProvider, image: str, other: Mapping[str, Any], why: str
) -> None:
    spec = msgspec.structs.replace(SandboxSpec(owner="o"), **other)
    with pytest.raises(SandboxStartFailed, match=why):
        await provider.create(spec)


def test_a_token_of_two_services_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=r"line 2: .* no other line has"):
        tenants_in(token_file(tmp_path, token="one token-of-16-letters\ntwo token-of-16-letters"))


@pytest.mark.parametrize(
    ("url", "warned"),
    [("http://10.0.0.1:1", True), ("http://127.0.0.1:1", False), ("http://[::1]:1", False), ("https://h:1", False)],
)
def test_an_address_without_encryption_is_warned_of(caplog: pytest.LogCaptureFixture, url: str, warned: bool) -> None:
    access_from({SERVER: url, TOKEN_FILE: "f"})
    assert ("is not encrypted" in caplog.text) == warned


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(SandboxUnavailable) as refused:
        access_from({SERVER: "https://:secret@h:1", TOKEN_FILE: "f"})
    assert "secret" not in str(refused.value)


async def test_one_that_has_ended_makes_room_for_another_of_its_name(machine: Machine) -> None:
    first, _ = await machine.served.create(KEY, WANTED)
    os.kill(first.handle.pid, 9)
    async with asyncio.timeout(20):
        while machine.served.find(KEY) is not None:
            await asyncio.sleep(0.01)  # nothing tells when a process is gone
    second, new = await machine.served.create(KEY, WANTED)
    assert (new, machine.served.find(KEY)) == (True, second)
    assert [made.sandbox_id for _, made in label.labelled(machine.state_dir)] == [second.handle.sandbox_id]


async def test_a_delete_before_the_making_has_begun_frees_the_name(machine: Machine) -> None:
    asked = asyncio.create_task(machine.served.create(KEY, WANTED))
    asked.add_done_callback(lambda _: None)
    deleted = asyncio.create_task(machine.served.remove(KEY))  # its first step comes right before the making's
    with pytest.raises(SandboxError, match="was deleted while it was made"):
        await asked
    await deleted
    assert machine.served._making == {}
    assert (await machine.served.create(KEY, WANTED))[1]


async def test_a_label_that_cannot_be_written_leaves_no_sandbox(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(label, "relabel", full)
    with pytest.raises(OSError, match="No space"):
        await machine.served.create(KEY, WANTED)
    assert label.labelled(machine.state_dir) == []


async def test_a_server_that_stood_still_gives_the_time_back(machine: Machine) -> None:
    await machine.served.create(KEY, WANTED)
    before = machine.served.state(KEY).expires_s
    machine.served.forgive(0.5)
    assert machine.served.state(KEY).expires_s <= before
    machine.served.forgive(1_000.0)
    assert machine.served.state(KEY).expires_s > before + 900


async def test_a_fault_at_one_end_does_not_keep_others_from_theirs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    destroy, failed = machine.provider.destroy, asyncio.Event()
    short = msgspec.structs.replace(WANTED, ttl_s=1)
    bad, _ = await machine.served.create(KEY, short)

    async def destroyed(handle: SandboxHandle) -> None:
        if handle == bad.handle and not failed.is_set():
            failed.set()
            raise OSError(5, "a fault of the disk")
        await destroy(handle)

    monkeypatch.setattr(machine.provider, "destroy", destroyed)
    await machine.served.create(ServedKey("one", "another0"), short)
    async with asyncio.timeout(20):
        while label.labelled(machine.state_dir):
            await asyncio.sleep(0.05)  # nothing tells when a sandbox has ended
    assert failed.is_set()


async def test_a_sandbox_that_is_made_for_longer_than_a_server_may_be_away_is_waited_for(
    machine: Machine, provider: RemoteProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.remote.messages.SLOWEST_S", 0.4)
    monkeypatch.setattr(provider_module, "CREATE_AWAY_S", 0.3)
    made, put = machine.provider.create, RemoteServer.create
    slow, asked = asyncio.Event(), 0

    async def create(spec: SandboxSpec) -> Sandbox:
        await asyncio.wait_for(slow.wait(), 20)
        return await made(spec)

    async def counted(self: RemoteServer, name: str, wanted: NewSandbox) -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            slow.set()
        await put(self, name, wanted)

    monkeypatch.setattr(machine.provider, "create", create)
    monkeypatch.setattr(RemoteServer, "create", counted)
    await provider.create(SandboxSpec(owner="o"))
    assert asked >= 3


async def test_a_body_that_does_not_come_is_not_waited_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.remote.messages.REQUEST_S", 0.2)
    host, _, port = machine.address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/heartbeat HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {TENANTS['one']}\r\n"
    writer.write(f"{head}Content-Length: 50\r\n\r\n{{".encode())
    async with asyncio.timeout(20):
        assert (await reader.readline()).split()[1] == b"408"
    writer.close()


async def test_patience_begins_when_the_machine_was_last_reached() -> None:
    """With the control: without `most_s`, a cut after `for_s` is the end."""
    clock = asyncio.get_running_loop().time

    async def asked(most_s: float) -> int:
        cuts = 0

        async def once() -> int:
            nonlocal cuts
            if cuts == 2:
                return cuts
            ends = clock() + 0.3
            while clock() < ends:  # a call that is under way for longer than a machine may be away
                await asyncio.sleep(0.05)
            cuts += 1
            raise LinkCut("cut", reached=True)

        return await patiently(once, 0.2, most_s=most_s)

    assert await asked(20.0) == 2
    with pytest.raises(LinkCut):
        await asked(0.0)


async def test_a_proxy_that_waits_for_less_long_is_asked_again(
    provider: RemoteProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*_: object, **__: object) -> ServerAnswer:
        return ServerAnswer(504, b"<html>", 1.0)

    monkeypatch.setattr(provider.server, "exchange", late)
    with pytest.raises(LinkCut) as cut:
        await provider.server.create(NAME, WANTED)
    assert cut.value.reached


async def test_a_token_that_is_being_changed_is_waited_for(
    provider: RemoteProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, seen, read = await provider.create(SandboxSpec(owner="o")), asyncio.Event(), ServerAccess.token

    def watched(self: ServerAccess) -> str:
        try:
            return read(self)
        except NotNow:
            seen.set()
            raise

    monkeypatch.setattr(ServerAccess, "token", watched)
    token_file(tmp_path).write_text("")
    asked = asyncio.create_task(provider.attach(box.handle))
    await asyncio.wait_for(seen.wait(), 20)
    token_file(tmp_path)
    assert (await (await asked).bash("echo on")).output == "on\n"
