"""A server of remote sandboxes over E2B: each sandbox is a machine there, in which the reference server runs.

    E2B_API_KEY=... python examples/sandboxes/e2b_server.py --template ID --inner-token FILE --tokens FILE

The template's start command is `python -m sandbox serve --kind bubblewrap --listen 0.0.0.0:7443 --most 1 ...` with the
token of `--inner-token`: it isolates agents from what else is in the machine. The names of sandboxes are metadata of
machines, so that this program keeps nothing, and may be started again at any time.
"""

import argparse
import asyncio
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from sandbox.errors import SandboxError, SandboxGone
from sandbox.remote import messages
from sandbox.remote.access import ServerAccess
from sandbox.remote.http import GONE, RemoteServer, ServerAnswer
from sandbox.remote.messages import HeartbeatAnswer, HeartbeatBody, Hello, NewSandbox, Refusal, RemoteList, RemoteState
from sandbox.remote.patience import patiently
from sandbox.remote.tunnel import carry
from sandbox.serving.tenants import tenant_of, tenants_in

PORT = 7443
START_S = 60.0  # for the server in a new machine to answer
MACHINE_S = 1800  # that a machine lives after the last heartbeat: longer than the sandbox in it


class Refused(Exception):
    def __init__(self, status: int, error: str, message: str) -> None:
        super().__init__(message)
        self.status, self.error = status, error


class E2B:
    """The routes of its API that are needed: https://e2b.dev/docs/api-reference."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str, template: str) -> None:
        self._session, self._url, self._headers, self._template = session, url, {"X-API-KEY": key}, template

    def address(self, machine: str) -> str:
        return f"https://{PORT}-{machine}.e2b.app"

    async def create(self, metadata: Mapping[str, str]) -> str:
        body = {
            "templateID": self._template,
            "timeout": MACHINE_S,
            "metadata": metadata,
            "allow_internet_access": False,
        }
        return (await self._ask("POST", "/sandboxes", {201}, json=body))["sandboxID"]

    async def find(self, **metadata: str) -> dict[str, str]:
        """Machines by the names of their sandboxes."""
        found, token = {}, ""
        while True:
            query = {"metadata": urlencode(metadata), "limit": "100", **({"nextToken": token} if token else {})}
            async with self._session.get(f"{self._url}/v2/sandboxes", params=query, headers=self._headers) as answer:
                if answer.status != 200:
                    raise Refused(503, "full", f"E2B answers {answer.status} to a list")
                found |= {each["metadata"]["name"]: each["sandboxID"] for each in await answer.json()}
                token = answer.headers.get("x-next-token", "")
            if not token:
                return found

    async def prolong(self, machine: str) -> None:
        await self._ask("POST", f"/sandboxes/{machine}/timeout", {204, 404}, json={"timeout": MACHINE_S})

    async def kill(self, machine: str) -> None:
        await self._ask("DELETE", f"/sandboxes/{machine}", {204, 404})

    async def _ask(self, method: str, path: str, good: set[int], **more: object) -> dict[str, str]:
        async with self._session.request(method, self._url + path, headers=self._headers, **more) as answer:
            if answer.status not in good:
                raise Refused(503, "full", f"E2B answers {answer.status}: {(await answer.text())[:500]}")
            return await answer.json() if answer.status == 201 else {}


class Binding:
    """The routes of `docs/reference/remote-sandboxes.md`."""

    def __init__(self, e2b: E2B, inner_token: Path, tenants: Mapping[str, str]) -> None:
        self._e2b, self._inner_token, self._tenants = e2b, inner_token, tenants
        self._servers: dict[str, RemoteServer] = {}  # by machine
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    def app(self) -> web.Application:
        app, one = (
            web.Application(client_max_size=messages.BODY_BYTES, middlewares=[self._guard]),
            "/v1/sandboxes/{name}",
        )
        app.add_routes([
            web.get("/v1", self.greet), web.get("/v1/sandboxes", self.list), web.post("/v1/heartbeat", self.beat),
            web.put(one, self.create), web.get(one, self.look), web.delete(one, self.delete),
            web.get(one + "/link", self.link),
        ])  # fmt: skip
        app.on_cleanup.append(self._close)
        return app

    async def _close(self, _: web.Application) -> None:
        for server in self._servers.values():
            await server.aclose()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._asked(request)
            return await handler(request)
        except Refused as why:
            return said(Refusal(error=why.error, message=str(why)), why.status)
        except msgspec.MsgspecError as error:
            return said(Refusal(error="unsupported", message=str(error)), 422)
        except SandboxGone as error:
            return said(Refusal(error=GONE, message=str(error)), 404)
        except (SandboxError, aiohttp.ClientError) as error:
            return said(Refusal(error="full", message=str(error)), 503)
        except web.HTTPException as error:
            return said(Refusal(error="request", message=error.reason), error.status)

    def _asked(self, request: web.Request) -> tuple[str, str]:
        """Its tenant, and the name in its path."""
        tenant = tenant_of(request.headers.get("Authorization", ""), self._tenants)
        if tenant is None:
            raise Refused(401, "token", "a token that this server does not know")
        name = request.match_info.get("name")
        if name is not None and not messages.NAME.fullmatch(name):
            raise Refused(422, "unsupported", "a name has 8 to 64 letters a to z and digits")
        return tenant, name or ""

    async def greet(self, _: web.Request) -> web.Response:
        return said(Hello(protocol=messages.PROTOCOL, name="e2b", kind="e2b"))

    async def create(self, request: web.Request) -> web.Response:
        body, (tenant, name) = await request.read(), self._asked(request)
        wanted = msgspec.json.decode(body, type=NewSandbox)
        async with self._locks[tenant, name]:
            there = (await self._e2b.find(tenant=tenant, name=name)).get(name)
            machine = there or await self._e2b.create({"tenant": tenant, "name": name, "service": wanted.service})
            made = False
            try:
                answer = await patiently(
                    lambda: self._server(machine).exchange("PUT", f"/sandboxes/{name}", body), START_S
                )
                made = answer.status in {200, 201}
            finally:
                if not made and there is None:
                    await asyncio.shield(self._kill(machine))
        return passed(answer)

    async def look(self, request: web.Request) -> web.Response:
        server = self._server(await self._machine(request))
        return passed(await server.exchange("GET", f"/sandboxes/{request.match_info['name']}"))

    async def delete(self, request: web.Request) -> web.Response:
        tenant, name = self._asked(request)
        async with self._locks[tenant, name]:
            for machine in (await self._e2b.find(tenant=tenant, name=name)).values():
                await self._kill(machine)
        self._locks.pop((tenant, name), None)
        return web.Response(status=204)

    async def list(self, request: web.Request) -> web.Response:
        (tenant, _), after = self._asked(request), request.query.get("after", "")
        found = sorted((await self._e2b.find(tenant=tenant, service=request.query.get("service", ""))).items())
        some = [(name, machine) for name, machine in found if name > after]
        answers = await asyncio.gather(
            *(self._server(machine).exchange("GET", f"/sandboxes/{name}") for name, machine in some[: messages.PAGE])
        )
        states = [msgspec.json.decode(each.body, type=RemoteState) for each in answers if each.status == 200]
        return said(RemoteList(sandboxes=states, more=len(some) > messages.PAGE))

    async def beat(self, request: web.Request) -> web.Response:
        names = msgspec.json.decode(await request.read(), type=HeartbeatBody).names
        there = await self._e2b.find(tenant=self._asked(request)[0])

        async def gone(name: str) -> bool:
            if (machine := there.get(name)) is None:
                return True
            over = bool(await self._server(machine).keep([name]))
            await (self._kill(machine) if over else self._e2b.prolong(machine))
            return over

        ended = await asyncio.gather(*map(gone, names))
        return said(HeartbeatAnswer(gone=[name for name, over in zip(names, ended, strict=True) if over]))

    async def link(self, request: web.Request) -> web.StreamResponse:
        machine = await self._machine(request)
        stream = await self._server(machine).link(request.match_info["name"], [])
        link = web.WebSocketResponse(heartbeat=messages.BEAT_S, max_msg_size=messages.MESSAGE_BYTES, compress=False)
        await link.prepare(request)
        prolonging = asyncio.create_task(self._prolong(machine))
        try:
            await carry(link, stream)
        finally:
            prolonging.cancel()
        return link

    async def _prolong(self, machine: str) -> None:
        while True:
            await self._e2b.prolong(machine)
            await asyncio.sleep(MACHINE_S / 6)

    async def _machine(self, request: web.Request) -> str:
        tenant, name = self._asked(request)
        found = await self._e2b.find(tenant=tenant, name=name)
        if name not in found:
            raise SandboxGone(f"there is no sandbox {name}")
        return found[name]

    def _server(self, machine: str) -> RemoteServer:
        access = ServerAccess(url=self._e2b.address(machine), token_file=self._inner_token)
        return self._servers.setdefault(machine, RemoteServer(access))

    async def _kill(self, machine: str) -> None:
        await self._e2b.kill(machine)
        if server := self._servers.pop(machine, None):
            await server.aclose()


def said(body: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def passed(answer: ServerAnswer) -> web.Response:
    return web.Response(body=answer.body, status=answer.status, content_type="application/json")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--template", "--inner-token", "--tokens"):
        parser.add_argument(name, required=True)
    parser.add_argument("--port", type=int, default=PORT, help="on loopback; TLS is a proxy's")
    given = parser.parse_args()
    async with aiohttp.ClientSession() as session:
        e2b = E2B(session, "https://api.e2b.app", os.environ["E2B_API_KEY"], given.template)
        runner = web.AppRunner(Binding(e2b, Path(given.inner_token), tenants_in(Path(given.tokens))).app())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", given.port).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
