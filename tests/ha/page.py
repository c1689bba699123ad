"""docs/howto/ha.md, followed as written: its files and its commands, on three addresses of loopback."""

import asyncio
import contextlib
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisError

from prorl_mq.process import redis_server
from prorl_mq.process.ports import free_port
from prorl_mq.process.redis_server import configuration, die_with_parent
from prorl_mq.schema.rendezvous import Place
from prorl_mq.servers import servers
from prorl_mq.store.server.connection import RedisSettings
from prorl_mq.store.server.primary import ask_node
from tests.conftest import binaries
from tests.ha.stand import NAMESPACE, Writers, queue_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(300)]
PAGE = (Path(__file__).parents[2] / "docs/howto/ha.md").read_text()
SECRET = "SECRET"
HOSTS = ("P", "R", "S")
AS_WRITTEN = dict(zip(HOSTS, HOSTS, strict=True))


def block(begins: str) -> str:
    """The text that the page shows in a box, by its first words."""
    [found] = [
        each for each in re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if each.startswith(begins)
    ]
    return str(found)


class Followed:
    """The hosts of the page. `tls`: as its part on TLS says, with Debian's server."""

    def __init__(self, directory: Path, *, tls: bool = False) -> None:
        self.directory = directory
        self.tls = tls
        self.program = (redis_server.installed_binary() if tls else None) or next(iter(binaries().values()))
        self.ports = {"6379": str(free_port()), "26379": str(free_port())}
        self.processes: dict[Path, subprocess.Popen[bytes]] = {}

    def here(self, text: str, roles: Mapping[str, str] = AS_WRITTEN) -> str:
        """The page's text with addresses and ports of this machine. `roles`: the host that has come into each place."""
        text = re.sub(r"\b(2?6379)\b", lambda found: self.ports[found[1]], text)
        text = re.sub(r"\bs([123])\b", r"127.77.0.\1", text)
        text = text.replace("/tls", str(self.directory / "tls"))
        return re.sub(r"\b[PRS]\b", lambda found: address(roles[found[0]]), text)

    def write(self, host: str, *lines: str, included: bool = False) -> None:
        """The file of a data server."""
        base = f"include {configuration()}\n" if included else Path(configuration()).read_text()
        text = self._listening(block("bind 0.0.0.0"), "6379") + "".join(f"{line}\n" for line in lines)
        text = self.here(text)
        text = text.replace("0.0.0.0", address(host)).replace("/data/redis", str(self._data(host)))
        self._file(host).write_text(f"{base}{text}replica-announce-ip {address(host)}\n")  # all connect from 127.0.0.1

    def _listening(self, text: str, port: str) -> str:
        encrypted = re.sub("^tls-port .*", f"tls-port {port}", block("port 0"), flags=re.MULTILINE)
        return text.replace(f"port {port}\n", encrypted) if self.tls else text

    def start(self, host: str) -> None:
        self._start(self._file(host))

    def watch(self, host: str) -> None:
        """Its Sentinel."""
        file = self.directory / f"{host}-sentinel.conf"
        text = self.here(self._listening(block("port 26379"), "26379")).replace("/data/sentinel", str(self.directory))
        file.write_text(f"bind {address(host)}\nsentinel announce-ip {address(host)}\n{text}")
        self._start(file, "--sentinel")

    def watch_as_before(self, host: str) -> None:
        """Its Sentinel, with the file that it has written."""
        self._start(self.directory / f"{host}-sentinel.conf", "--sentinel")

    def kill(self, host: str, kind: str = "") -> None:
        process = self.processes.pop(self.directory / f"{host}{kind}.conf")
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    async def do(self, commands: str, roles: Mapping[str, str] = AS_WRITTEN) -> None:
        """Commands in a shell; `redis-cli` is that of Debian."""
        [words] = re.findall(r"`(--tls --cacert [^`]*)`", PAGE)
        program = f"command redis-cli -e -p 6379 {words if self.tls else ''}"
        text = f'redis-cli() {{ {program} "$@"; }}\nexport REDISCLI_AUTH={SECRET}\nset -e\n{commands}'
        process = await asyncio.create_subprocess_exec("bash", "-c", self.here(text, roles))
        assert await process.wait() == 0

    async def ask(self, host: str, *command: str) -> Any:
        """One command to a data server."""
        several = servers(self.settings.url)
        assert several is not None
        url = several.url((address(host), int(self.ports["6379"])))
        unchecked = "&ssl_check_hostname=false" if self.tls else ""
        [reply] = await ask_node(url + unchecked, command, place=Place(url="", secret=SECRET))
        return reply

    async def answers(self, host: str) -> None:
        async def answering() -> bool:
            with contextlib.suppress(Exception):
                return await self.ask(host, "PING") == b"PONG"
            return False

        await until(answering)

    @property
    def settings(self) -> RedisSettings:
        url = self.here("redis+sentinel://s1:26379,s2:26379,s3:26379/queue")
        if self.tls:
            [written] = re.findall("^export PRORL_REDIS='(.*)'$", PAGE, re.MULTILINE)
            url = self.here(written)
        return RedisSettings(url=url, namespace=NAMESPACE, password=SECRET)

    def _file(self, host: str) -> Path:
        return self.directory / f"{host}.conf"

    def _data(self, host: str) -> Path:
        place = self.directory / host
        place.mkdir(exist_ok=True)
        return place

    def _start(self, file: Path, *words: str) -> None:
        with file.with_suffix(".log").open("wb") as log:
            self.processes[file] = subprocess.Popen(
                [self.program, file, *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one libc call
            )


def address(host: str) -> str:
    return f"127.77.0.{HOSTS.index(host) + 1}"


@contextlib.asynccontextmanager
async def followed(
    directory: Path, *, tls: bool = False, leaves_out: str = ""
) -> AsyncIterator[tuple[Followed, Writers]]:
    """The section on setting it up. `leaves_out`: of the names in certificates."""
    page = Followed(directory, tls=tls)
    try:
        if tls:
            await page.do(block("mkdir -p /tls").replace(leaves_out, ""))
        for host, lines in (("P", ()), ("R", ("replicaof P 6379",)), ("S", ("replicaof R 6379",))):
            page.write(host, *lines)
            page.start(host)
            await page.answers(host)
        for host in HOSTS:
            page.watch(host)
        await until_answers(page)
        await tune(page)
        writers = Writers(page.settings, queue_of(page.settings))
        await writers.replicated()
        try:
            yield page, writers
        finally:
            await writers.store.redis.aclose()
    finally:
        page.stop()


async def tune(page: Followed) -> None:
    [tuned] = re.findall(r"`redis-cli -h s1 -p 26379 (SENTINEL DEBUG [^`]*)`", PAGE)
    await page.do(f"for s in s1 s2 s3; do redis-cli -h $s -p 26379 {tuned}; done")


async def until_answers(page: Followed) -> None:
    async def seen() -> bool:
        with contextlib.suppress(AssertionError):
            await page.do("for s in s1 s2 s3; do redis-cli -h $s -p 26379 SENTINEL CKQUORUM queue; done")
            return True
        return False

    await until(seen)


async def until_second(page: Followed, primary: str) -> None:
    """A Sentinel has attached what came back to the primary."""

    async def seen() -> bool:
        with contextlib.suppress(RedisError, OSError):
            return b"connected_slaves:2" in await page.ask(primary, "INFO", "replication")
        return False

    await until(seen)


async def test_a_chain_that_is_set_up_as_written_outlives_what_the_page_says(tmp_path: Path) -> None:
    if shutil.which("redis-cli") is None:
        pytest.fail("no redis-cli on PATH: run `make setup`")
    async with followed(tmp_path) as (page, writers):
        async with writers.writing():
            await writers.more(50)
            page.kill("P")
            await writers.more(50)
        page.start("P")
        await until_second(page, "R")
        await page.do(block("export REDISCLI_AUTH"))
        await writers.whole()

        for host in ("P", "S", "R"):  # files that Sentinel has written into start a server
            await page.do(f"redis-cli -h {host} CONFIG REWRITE")
        page.kill("P")
        page.start("P")
        await writers.whole()
        async with writers.writing():
            await writers.more(50)
            await page.do("redis-cli -h s1 -p 26379 SENTINEL FAILOVER queue")
            await until_second(page, "S")
            await writers.more(50)
        assert await writers.lost() == set()
        await page.do(block("export REDISCLI_AUTH"), {"P": "R", "R": "S", "S": "P"})
        await writers.whole()

        page.kill("S")  # the primary now
        page.kill("P")
        await page.do(block("redis-cli -h S REPLICAOF NO ONE"), {"P": "S", "R": "P", "S": "R"})
        page.write("S", "replicaof R 6379")
        page.write("P", "replicaof S 6379")
        for host in ("S", "P"):
            page.start(host)
        await writers.whole()
        assert await writers.lost() == set(), "the spare had everything"
        assert await writers.repeated() == {"already"}


@pytest.mark.parametrize("again", [True, False])
async def test_a_sentinel_that_was_down_while_a_spare_was_promoted_by_hand(tmp_path: Path, again: bool) -> None:
    """The control: with its own file it leads the others to a server that the operator has not promoted."""
    now = {"P": "R", "R": "S", "S": "P"}
    async with followed(tmp_path) as (page, writers):
        async with writers.writing():
            await writers.more(50)
            page.kill("P")
            await writers.more(50)
        page.start("P")
        await until_second(page, "R")
        await page.do(block("export REDISCLI_AUTH"))
        await writers.whole()

        page.kill("S", "-sentinel")
        for host in ("S", "R"):
            page.kill(host)
        await page.do(block("redis-cli -h S REPLICAOF NO ONE").replace(" s3", ""), now)
        for host, leader in (("R", "P"), ("S", "R")):
            page.write(host, f"replicaof {leader} 6379")
            page.start(host)
        await until(lambda: followed_by_one(page, "P"))
        await until(lambda: followed_by_one(page, "R"))
        if again:
            page.watch("S")
        else:
            page.watch_as_before("S")
        await until_answers(page)
        await tune(page)
        if again:
            await writers.whole()
            assert await writers.lost() == set()
        else:
            await until(lambda: led_away(page, "P"))


async def followed_by_one(page: Followed, host: str) -> bool:
    with contextlib.suppress(RedisError, OSError):
        return b"connected_slaves:1\r" in await page.ask(host, "INFO", "replication")
    return False


async def leads(page: Followed, host: str) -> bool:
    with contextlib.suppress(RedisError, OSError):
        return b"role:master" in await page.ask(host, "INFO", "replication")
    return False


async def led_away(page: Followed, host: str) -> bool:
    """It is no primary any more."""
    with contextlib.suppress(RedisError, OSError):
        return b"role:slave" in await page.ask(host, "INFO", "replication")
    return False


async def test_a_chain_with_certificates_as_written_fails_over_and_is_whole_again(tmp_path: Path) -> None:
    async with followed(tmp_path, tls=True) as (page, writers):
        async with writers.writing():
            await writers.more(50)
            page.kill("P")
            await writers.more(50)
        page.start("P")
        await until_second(page, "R")
        await page.do(block("export REDISCLI_AUTH"))
        await writers.whole()
        page.kill("R")  # what a Sentinel has written into its file starts it again
        await until(lambda: leads(page, "S"))  # one that is back before is never missed
        page.start("R")
        await until_second(page, "S")
        await page.do(block("export REDISCLI_AUTH"), {"P": "R", "R": "S", "S": "P"})
        await writers.whole()
        assert await writers.lost() == set()
        assert await writers.repeated() == {"already"}


async def test_a_certificate_that_leaves_the_replica_out_is_told_before_a_fail_over(tmp_path: Path) -> None:
    """The control of the names that the page gives: servers and Sentinels follow each other without them."""
    with pytest.raises(TimeoutError, match="with TLS a certificate that names it"):
        async with followed(tmp_path, tls=True, leaves_out="IP:R,"):
            pass


@pytest.mark.parametrize("included", [False, True])
async def test_a_file_that_a_server_has_rewritten_starts_it_again(tmp_path: Path, included: bool) -> None:
    """The control: with `include` its users stand there twice."""
    page = Followed(tmp_path)
    page.write("P", included=included)
    try:
        page.start("P")
        await page.answers("P")
        await page.do("redis-cli -h P CONFIG REWRITE")
        page.kill("P")
        page.start("P")
        if not included:
            await page.answers("P")
            return
        await asyncio.to_thread(page.processes[page._file("P")].wait, 30)
        assert "Duplicate user" in (tmp_path / "P.log").read_text()
    finally:
        page.stop()
