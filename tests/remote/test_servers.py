"""Servers that refuse, are full, lie, speak another protocol, or are killed and started again."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from sandbox.errors import NotNow, SandboxError, SandboxStartFailed, SandboxUnavailable
from sandbox.isolators.kinds import make_provider
from sandbox.lifetime import label
from sandbox.lifetime.sweep import sweep
from sandbox.protocol import Mount, SandboxSpec
from sandbox.remote.access import ServerAccess
from sandbox.remote.provider import RemoteProvider
from sandbox.serving.tenants import tenants_in
from tests.remote.machine import TENANTS, Machine, answering, serving, token_file

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
SPEC = SandboxSpec(owner="job test a b c")
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def providers() -> AsyncIterator[Callable[[ServerAccess], RemoteProvider]]:
    made: list[RemoteProvider] = []

    def provider(access: ServerAccess) -> RemoteProvider:
        made.append(RemoteProvider("n1", access))
        return made[-1]

    yield provider
    for each in made:
        await each.aclose()


Providers = Callable[[ServerAccess], RemoteProvider]


async def test_a_wrong_token_makes_jobs_wait_until_the_right_one_is_there(
    machine: Machine, providers: Providers, tmp_path: Path
) -> None:
    access = machine.access()
    token_file(tmp_path, token="another-token-of-16")
    provider = providers(access)
    with pytest.raises(NotNow, match=rf"refuses the token in {re.escape(str(access.token_file))}"):
        await provider.create(SPEC)
    token_file(tmp_path)
    await (await provider.create(SPEC)).close()
    access.token_file.chmod(0o644)
    with pytest.raises(NotNow, match="can be read by others: chmod 600 it"):
        await provider.create(SPEC)


async def test_a_service_does_not_see_anothers_sandboxes(machine: Machine, providers: Providers) -> None:
    mine, theirs = providers(machine.access()), providers(machine.access("two"))
    box = await mine.create(SPEC)
    assert await theirs.server.of_service("test") == {}
    assert list(await theirs.server.keep([box.handle.sandbox_id])) == [box.handle.sandbox_id]
    await theirs.destroy(box.handle)
    with pytest.raises(SandboxError, match="is gone"):
        await theirs.attach(box.handle)
    assert (await box.bash("echo on")).output == "on\n"


async def test_a_full_server_says_when_to_ask_again(tmp_path: Path, providers: Providers) -> None:
    async with serving(Machine(tmp_path, most=1)) as machine:
        provider = providers(machine.access())
        box = await provider.create(SPEC)
        with pytest.raises(NotNow, match="429 full") as full:
            await provider.create(SPEC)
        assert full.value.retry_after_s == 2.0
        await box.close()
        await provider.create(SPEC)


async def test_what_a_server_cannot_make_fails_with_its_reason(machine: Machine, providers: Providers) -> None:
    provider = providers(machine.access())
    for spec, why in (
        (SandboxSpec(owner="o", network=True), "no network"),
        (SandboxSpec(owner="o", image="../../etc"), "there is no image"),
        (SandboxSpec(owner="o", image="/"), "there is no image"),
        (SandboxSpec(owner="o", writable=["/root"]), "writable and empty name directories of an image"),
        (SandboxSpec(owner="o", mounts=[Mount(source="/etc", target="/x")]), "neither mounts nor a door"),
    ):
        with pytest.raises(SandboxStartFailed, match=why):
            await provider.create(spec)
    assert label.labelled(machine.state_dir) == []


@pytest.mark.parametrize(
    ("hello", "error", "words"),
    [
        (b'{"protocol": 2, "name": "m", "kind": "k"}', SandboxUnavailable, "speaks protocol 2, and this release 1"),
        (b'{"protocol": 1, "name": "a b", "kind": "k"}', SandboxError, "its name is 'a b'"),
        (b'{"protocol": "1"}', SandboxError, "an answer that is none"),
        (b"<html>", SandboxError, "an answer that is none"),
        (b" " * (2 << 20), SandboxError, "an answer of over 1048576 bytes"),
    ],
    ids=["another protocol", "a name of two words", "a wrong type", "no JSON", "too much"],
)
async def test_what_is_no_server_of_this_protocol_is_named(
    tmp_path: Path, providers: Providers, hello: bytes, error: type[SandboxError], words: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=hello)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with answering(app) as url:
        provider = providers(ServerAccess(url=url, token_file=token_file(tmp_path)))
        with pytest.raises(error, match=words):
            await provider.create(SPEC)


def liar(machine: Machine, talk: Callable[[web.WebSocketResponse], Awaitable[None]]) -> web.Application:
    """All routes of a server, but for its links."""
    app = web.Application()

    async def link(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        await talk(socket)
        await socket.close()
        return socket

    async def other(request: web.Request) -> web.Response:
        if request.method == "DELETE":
            return web.Response(status=204)
        body = b'{"protocol": 1, "kind": "k", "name": "liar12345", "service": "", "owner": "", "expires_s": 9}'
        return web.Response(body=body, content_type="application/json")

    app.router.add_get("/v1/sandboxes/{name}/link", link)
    app.router.add_route("*", "/{path:.*}", other)
    return app


@pytest.mark.parametrize(
    "said",
    [
        "text",
        b"\xff" * 64,
        b"\x00\x00\x00\x02\x00\x00\x00\x00[]",
        b"\x7f\xff\xff\xff\x7f\xff\xff\xff",
        b" " * (2 << 20),
    ],
    ids=["text", "bytes", "no object", "a huge frame", "a huge message"],
)
async def test_a_link_that_lies_is_an_error_and_soon(
    machine: Machine, providers: Providers, tmp_path: Path, said: bytes | str
) -> None:
    async def talk(socket: web.WebSocketResponse) -> None:
        await (socket.send_str(said) if isinstance(said, str) else socket.send_bytes(said))
        await socket.receive()

    async with answering(liar(machine, talk)) as url:
        provider = providers(ServerAccess(url=url, token_file=token_file(tmp_path)))
        box = await provider.create(SPEC)
        async with asyncio.timeout(20):
            with pytest.raises(SandboxError, match="an answer that is none"):
                await box.named("0.0").bash("true")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no token"),
        ("one short", "line 1: write a NAME"),
        ("one token-of-16-letters\none token-of-16-letterz", "line 2: write a NAME"),
    ],
)
def test_a_tokens_file_that_does_not_fit_is_refused_without_a_token(tmp_path: Path, text: str, words: str) -> None:
    file = token_file(tmp_path, token=text or " ")
    with pytest.raises(SandboxUnavailable, match=words) as refused:
        tenants_in(file)
    assert "letter" not in str(refused.value)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "PRORL_SANDBOX_SERVER is not set"),
        ({"PRORL_SANDBOX_SERVER": "http://h:1"}, "PRORL_SANDBOX_TOKEN_FILE is not set"),
        ({"PRORL_SANDBOX_SERVER": "h:1", "PRORL_SANDBOX_TOKEN_FILE": "f"}, "'h:1' is not https://HOST:PORT"),
        ({"PRORL_SANDBOX_SERVER": "http://h:x", "PRORL_SANDBOX_TOKEN_FILE": "f"}, "'http://h:x' is not"),
    ],
)
def test_settings_that_are_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], words: str
) -> None:
    for name in ("PRORL_SANDBOX_SERVER", "PRORL_SANDBOX_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SandboxUnavailable, match=re.escape(words)):
        make_provider("remote", node="n", state_dir=tmp_path)


def started(tmp_path: Path, *more: str) -> "tuple[subprocess.Popen[str], str]":
    """The program, and its address."""
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("".join(f"{name} {token}\n" for name, token in TENANTS.items()))
    argv = [sys.executable, "-m", "sandbox", "serve", "--kind", "bubblewrap", "--state-dir", str(tmp_path / "state")]
    argv += ["--tokens", str(tokens), *more]
    process = subprocess.Popen(argv, cwd=ROOT, env={**os.environ}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


async def test_a_killed_server_that_starts_again_has_the_same_sandboxes_and_finishes_no_other(
    tmp_path: Path, providers: Providers
) -> None:
    process, url = await asyncio.to_thread(started, tmp_path, "--listen", "127.0.0.1:0")
    provider = providers(ServerAccess(url=url, token_file=token_file(tmp_path)))
    try:
        box = await provider.create(SPEC)
        half = await provider.create(SandboxSpec(owner="job test half b c"))
        command = "echo x >> times; sleep 1; wc -l < times"
        asked = asyncio.create_task(box.named("0.0").bash(command))
        async with asyncio.timeout(20):
            while (await half.run(["true"])).exit_code or (await box.run(["test", "-e", "times"])).exit_code:
                await asyncio.sleep(0.05)
        process.kill()
        process.wait()
        for directory, made in label.labelled(tmp_path / "state"):
            if "half" in made.owner:  # as if the server had been killed before it was ready
                assert label.relabel(directory, made.sandbox_id, made.owner.replace('"ready":true', '"ready":false'))
        process.stdout.close()  # type: ignore[union-attr]
        process, _ = await asyncio.to_thread(started, tmp_path, "--listen", url.removeprefix("http://"))
        assert (await asked).output.strip() == "1"
        assert list(await provider.server.of_service("test")) == [box.handle.sandbox_id]
        assert (await box.named("0.1").bash("cat times")).output == "x\n"
        await box.close()
        assert label.labelled(tmp_path / "state") == []
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()  # type: ignore[union-attr]
        await sweep(tmp_path / "state", lambda _: False)


async def test_two_servers_of_one_directory_are_refused(tmp_path: Path) -> None:
    process, _ = await asyncio.to_thread(started, tmp_path, "--listen", "127.0.0.1:0")
    try:
        argv = [
            sys.executable,
            "-m",
            "sandbox",
            "serve",
            "--kind",
            "bubblewrap",
            "--state-dir",
            str(tmp_path / "state"),
        ]
        argv += ["--tokens", str(tmp_path / "tokens"), "--listen", "127.0.0.1:0"]
        second = await asyncio.to_thread(subprocess.run, argv, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (second.returncode, "has a sandbox server already" in second.stderr) == (1, True), second.stderr
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()  # type: ignore[union-attr]


async def test_a_certificate_that_is_not_trusted_makes_jobs_wait(
    tmp_path: Path, providers: Providers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its authority's file named, the same works; the link is encrypted, too."""
    pem, made = tmp_path / "server.pem", ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made += ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    try:
        await asyncio.to_thread(subprocess.run, made, capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    pem.write_text((tmp_path / "cert.pem").read_text() + (tmp_path / "key.pem").read_text())
    process, url = await asyncio.to_thread(started, tmp_path, "--listen", "127.0.0.1:0", "--tls", str(pem))
    access = ServerAccess(url=url, token_file=token_file(tmp_path))
    try:
        assert url.startswith("https://")
        with pytest.raises(NotNow, match=r"is not trusted: .*SSL_CERT_FILE"):
            await providers(access).create(SPEC)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        box = await providers(access).create(SPEC)
        assert (await box.bash("echo sealed")).output == "sealed\n"
        await box.close()
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()  # type: ignore[union-attr]
        await sweep(tmp_path / "state", lambda _: False)
