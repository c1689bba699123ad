"""Agent Lightning: the routes of its server that a trainer calls, with rollouts that the service makes.

    PRORL_URL=http://127.0.0.1:8080 uvicorn agent_lightning_server:app --port 8900

`agentlightning.agl_base_url` names it; Agent Lightning's own server, controller and agent classes are not needed. A row
of the data set names its task in `prorl`: `{"task_id", "data_source", "payload"}`, and may have `sampling`. A sample
that the service could not get is `failed` and has no events. There is no key: keep it on loopback.

As in Agent Lightning's server, rollouts are kept in this process until they are deleted, and an id that comes again is
the same rollout. Not served is the asynchronous mode, which pauses the server while weights change (`/proxy`).
"""

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from prorl_mq.client import AsyncClient
from prorl_mq.client.rollouts import Rollouts, sampling_of
from prorl_mq.converters import agent_lightning
from prorl_mq.errors import ProrlError
from prorl_mq.schema.messages import Purpose, Task
from prorl_mq.schema.strict import convert

ATTEMPT = "0"  # the service counts its own
DEFAULTS: dict[str, Any] = {"is_train": True, "config": {}, "metadata": {}}


class Running:
    """A rollout of this server. `shown` is what the trainer sees of it."""

    work: asyncio.Task[None]

    def __init__(self, asked: dict[str, Any]) -> None:
        given = {name: value for name, value in asked.items() if value is not None}
        row = given["input"]
        self.task, self.sampling = convert(row["prorl"], Task), sampling_of(row.get("sampling", {}))
        self.shown = {"rollout_id": uuid.uuid4().hex, **DEFAULTS, **given, "status": {"version": 0}}
        self.name: str = self.shown["rollout_id"]
        self.timeout_s = float(self.shown["config"].get("timeout_seconds", 3600))
        self.events: list[dict[str, Any]] = []
        self.move("queuing", created_at=time.time())

    def move(self, state: str, **more: Any) -> None:
        before = self.shown["status"]
        now = {"state": state, "version": before["version"] + 1, "updated_at": time.time()}
        self.shown["status"] = {**before, **now, **more}

    def record(self, event_type: str, data: dict[str, Any]) -> dict[str, Any]:
        about = {"rollout_id": self.name, "attempt_id": ATTEMPT, "timestamp": time.time()}
        self.events.append({"event_type": event_type, "data": data, **about})
        return self.events[-1]

    async def make(self, rollouts: Rollouts) -> None:
        self.move("running", last_attempt_id=ATTEMPT)
        purpose = Purpose.TRAIN if self.shown["is_train"] else Purpose.EVAL
        try:
            async with asyncio.timeout(self.timeout_s):
                [found] = await rollouts.of(self.task, sampling=self.sampling, purpose=purpose)
            for event in agent_lightning.events(found):
                self.record(**event)
            self.move("succeeded")
        except (ProrlError, TimeoutError) as error:
            self.move("failed", error_message=f"{type(error).__name__}: {error}")


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    state, run, token = app.state, os.environ.get("PRORL_RUN", "agent-lightning"), os.environ.get("PRORL_TOKEN")
    state.known, state.client = {}, AsyncClient(os.environ["PRORL_URL"], token=token)
    async with state.client, Rollouts(state.client, run) as state.rollouts, asyncio.TaskGroup() as state.work:
        yield
        for each in state.known.values():
            each.work.cancel()


async def enqueue(request: Request) -> Response:
    state = request.app.state
    try:
        asked = [Running(each) for each in await request.json()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HTTPException(422, f"a rollout has no task that can be read: {error}") from error
    for each in asked:
        if each.name not in state.known:
            each.work = state.work.create_task(each.make(state.rollouts), name=f"rollout {each.name}")
            state.known[each.name] = each
    return JSONResponse([state.known[each.name].shown for each in asked], 201)


def _found(request: Request) -> Running:
    if request.path_params["name"] not in request.app.state.known:
        raise HTTPException(404, f"Rollout not found: {request.path_params['name']}")
    return request.app.state.known[request.path_params["name"]]


async def show(request: Request) -> Response:
    found = _found(request)
    return JSONResponse({"rollout": found.shown, "attempts": [ATTEMPT] if found.events else []})


async def delete(request: Request) -> Response:
    """One that still runs is cancelled."""
    with contextlib.suppress(KeyError):
        request.app.state.known.pop(request.path_params["name"]).work.cancel()
    return Response(status_code=204)


async def show_events(request: Request) -> Response:
    found, asked = _found(request).events, request.query_params
    short = {"model_request": agent_lightning.triplet} if asked.get("format") == "triplet" else {}
    chosen = [each for each in found if asked.get("event_type") in {None, each["event_type"]}]
    return JSONResponse([{**each, "data": short.get(each["event_type"], dict)(each["data"])} for each in chosen])


async def add_event(request: Request) -> Response:
    """What a trainer's hook adds, such as another reward: the last one counts."""
    event = await request.json()
    return JSONResponse(_found(request).record(event["event_type"], event.get("data") or {}))


async def models(request: Request) -> Response:
    """The trainer's inference servers join the pool. It deletes all before each step; the pool drops what has died."""
    if request.method == "DELETE":
        return JSONResponse({"status": "ok"})
    found = await request.json()
    for each in found:
        await request.app.state.client.add_backend("policy", each["endpoint"], model=each["model"])
    return JSONResponse([{"version": 0, **each} for each in found], 201)


ROUTES = [
    Route("/healthz", lambda _: JSONResponse({"status": "ok"})),
    Route("/api/rollouts", enqueue, methods=["POST"]),
    Route("/api/rollouts/{name}", show),
    Route("/api/rollouts/{name}", delete, methods=["DELETE"]),
    Route("/api/rollouts/{name}/events", show_events),
    Route("/api/rollouts/{name}/attempt/{attempt}/events", add_event, methods=["POST"]),
    Route("/api/models", models, methods=["POST", "DELETE"]),
]
app = Starlette(routes=ROUTES, lifespan=lifespan)
