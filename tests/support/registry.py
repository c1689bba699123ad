"""A registry on loopback that speaks the pull half of the distribution protocol, counts, and fails on demand."""

import asyncio
import base64
import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

from aiohttp import web

OCI = "application/vnd.oci.image"
GZIP, ZSTD, PLAIN = f"{OCI}.layer.v1.tar+gzip", f"{OCI}.layer.v1.tar+zstd", f"{OCI}.layer.v1.tar"

SIF = "application/vnd.sylabs.sif.layer.v1.sif"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def file(name: str, data: bytes = b"", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.uid = len(data), mode, 12345
    return entry, data


def other(name: str, kind: bytes, link: str = "", mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    """A directory, link or device."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, link, mode
    return entry, b""


def archive(entries: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for entry, data in entries:
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def packed(data: bytes, media: str) -> bytes:
    if media == GZIP:
        return gzip.compress(data, 1, mtime=0)
    if media == ZSTD:
        return subprocess.run(["zstd", "-q", "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout
    return data


class LoopbackRegistry:
    """Serves what `push` was given. Set its fields to make it fail; read `asked` and `sent`."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.asked: Counter[str] = Counter()  # digest or tag → requests that were answered 200 or 206
        self.sent: Counter[str] = Counter()  # digest → bytes of blobs
        self.ranges: list[str] = []
        self.secrets: list[str] = []  # every Authorization header
        self.login: str | None = None  # USER:PASSWORD: who lacks it gets 401
        self.token: str | None = None  # with `login`: by way of the token service
        self.bytes_per_s: float | None = None
        self.cut_after: int | None = None  # bytes of a blob, once: then the connection ends
        self.redirect_to: str | None = None  # where blobs are
        self.no_ranges = False
        self.swap: Callable[[bytes], bytes] | None = None  # what becomes of a blob
        self.statuses: list[int] = []  # of the next answers
        self._runner: web.AppRunner | None = None
        self.host = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/token", self._token)
        app.router.add_get("/v2/{name:.+}/manifests/{want}", self._manifest)
        app.router.add_get("/v2/{name:.+}/blobs/{digest}", self._blob)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.host = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def put(self, data: bytes) -> str:
        self.blobs[digest_of(data)] = data
        return digest_of(data)

    def push(
        self, name: str, layers: Sequence[bytes], *, tag: str = "latest", media: str = GZIP, index: bool = False,
        size: int | None = None, env: Sequence[str] = ("A=1",),
    ) -> str:  # fmt: skip
        """Layers as tar archives, from the lowest up; the image's name as a sandbox takes it."""
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Env": list(env)}}).encode()
        blobs = [packed(each, media) for each in layers]
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": {"mediaType": f"{OCI}.config.v1+json", "digest": self.put(config), "size": len(config)},
            "layers": [
                {"mediaType": media, "digest": self.put(each), "size": len(each) if size is None else size}
                for each in blobs
            ],
        }
        found = self._name(name, tag, manifest)
        if index:
            mine = {"mediaType": manifest["mediaType"], "digest": found, "size": 1}
            mine["platform"] = {"os": "linux", "architecture": "amd64"}
            foreign = {**mine, "digest": f"sha256:{'0' * 64}", "platform": {"os": "linux", "architecture": "s390x"}}
            about = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [foreign, mine]}
            self._name(name, tag, about)
        return f"docker://{self.host}/{name}:{tag}"

    def push_artifact(self, name: str, data: bytes, *, media: str = SIF, tag: str = "latest") -> str:
        """A file as `apptainer push` keeps it: the one layer of an artifact without a configuration."""
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": {"mediaType": "application/vnd.sylabs.sif.config.v1+json", "digest": self.put(b""), "size": 0},
            "layers": [{"mediaType": media, "digest": self.put(data), "size": len(data)}],
        }
        self._name(name, tag, manifest)
        return f"oras://{self.host}/{name}:{tag}"

    def _name(self, name: str, tag: str, about: dict[str, Any]) -> str:
        data = json.dumps(about).encode()
        for want in (tag, digest_of(data)):
            self.manifests[name, want] = (about["mediaType"], data)
        return digest_of(data)

    def _refused(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "")
        if given:
            self.secrets.append(given)
        if self.statuses:
            return web.Response(status=self.statuses.pop(0))
        if self.login is None:
            return None
        if self.token is not None:
            challenge = f'Bearer realm="http://{self.host}/token",service="here",scope="repository:x:pull"'
            right = f"Bearer {self.token}"
        else:
            challenge, right = 'Basic realm="here"', self._basic()
        return None if given == right else web.Response(status=401, headers={"WWW-Authenticate": challenge})

    def _basic(self) -> str:
        return f"Basic {base64.b64encode((self.login or '').encode()).decode()}"

    async def _token(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        return web.json_response({"token": self.token}) if given == self._basic() else web.Response(status=401)

    async def _manifest(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        found = self.manifests.get((request.match_info["name"], request.match_info["want"]))
        if found is None:
            return web.Response(status=404)
        self.asked[request.match_info["want"]] += 1
        return web.Response(body=found[1], headers={"Content-Type": found[0]})

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        digest = request.match_info["digest"]
        if refused := self._refused(request):
            return refused
        if self.redirect_to is not None:
            return web.Response(status=307, headers={"Location": f"{self.redirect_to}{request.path}"})
        if digest not in self.blobs:
            return web.Response(status=404)
        data = self.blobs[digest]
        self.asked[digest] += 1
        begin, status, headers = 0, 200, {}
        asked = request.headers.get("Range")
        if asked and not self.no_ranges:
            self.ranges.append(asked)
            begin, status = int(asked.removeprefix("bytes=").partition("-")[0]), 206
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        data = (self.swap(data) if self.swap else data)[begin:]
        answer = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(data))})
        await answer.prepare(request)
        with suppress(ConnectionError):
            await self._send(request, answer, data, digest)
        return answer

    async def _send(self, request: web.Request, answer: web.StreamResponse, data: bytes, digest: str) -> None:
        cut = self.cut_after if self.cut_after is not None and self.cut_after < len(data) else None
        if cut is not None:
            self.cut_after = None
        step = len(data) or 1 if self.bytes_per_s is None else max(1, int(self.bytes_per_s / 50))
        if cut is not None:
            data, step = data[:cut], cut
        for at in range(0, len(data), step):
            await answer.write(data[at : at + step])
            self.sent[digest] += len(data[at : at + step])
            if self.bytes_per_s is not None:
                await asyncio.sleep(0.02)  # the rate of a slow network
        if cut is not None and request.transport is not None:
            request.transport.abort()
