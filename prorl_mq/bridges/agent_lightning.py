"""Agent Lightning 1.0: the routes of its server that a trainer calls, with rollouts that the service makes.

    PRORL_URL=http://127.0.0.1:8080 uvicorn prorl_mq.bridges.agent_lightning:app --port 8900

`agentlightning.agl_base_url` names it; Agent Lightning's own server, controller and agent classes are not needed.
Rows are those of `tasks`, and may have `sampling`. There is no key: keep it on loopback.

* Limits: those of the row's `sampling`; `timeout_seconds` of the rollout.
* Rows: all turns in one list. Its trainer merges turns whose prompts continue each other into rows, and has
  advantages of rollouts (`rollout_level_advantage`) and a loss that averages each rollout's tokens
  (`per_rollout_loss`).
* A sample that was lost is `failed`, with the cause in `error_message` and without events: it has no reward.
* The asynchronous mode pauses the gateway while weights change: that pauses the run. Turns under way end, and the
  sandboxes are given back until it is resumed.

As in Agent Lightning's server, rollouts are kept in this process until they are deleted, and an id that comes again
is the same rollout.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any

from prorl_mq.bridges.tasks import task_of
from prorl_mq.bridges.theirs import address
from prorl_mq.client import AsyncClient
from prorl_mq.client.rollouts import Rollouts, sampling_of
from prorl_mq.converters import agent_lightning
from prorl_mq.errors import NotFound, ProrlError, ServiceError
from prorl_mq.schema.messages import Purpose
from prorl_mq.schema.status import PauseAnswer

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise ImportError("this bridge is a server: pip install 'prorl-mq[service]'", name=error.name) from error

ATTEMPT = "0"  # the service counts its own
DEFAULTS: dict[str, Any] = {"is_train": True, "config": {}, "metadata": {}}
NO_SUCH_RUN = 404
PAUSE_S = 86_400  # then a run that nobody resumes continues


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    made = globals()[name] = create_app(*address())
    return made


class LightningRollout:
    """A rollout of this server. `shown` is what the trainer sees of it."""

    work: asyncio.Task[None]

    def __init__(self, asked: dict[str, Any], sources: Mapping[str, str]) -> None:
        given = {name: value for name, value in asked.items() if value is not None}
        row = given["input"]
        self.task, self.sampling = task_of(row, sources), sampling_of(row.get("sampling") or {})
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

    async def make(self, rollouts: Rollouts, resumed: asyncio.Event) -> None:
        await resumed.wait()
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


def create_app(
    url: str,
    token: str | None = None,
    *,
    run_id: str = "agent-lightning",
    sources: Mapping[str, str] | None = None,
    model: str = "",
) -> Starlette:
    """The server of one run. `sources` renames data sources to those of task families; `model`: whose rows it gives."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        state = app.state
        state.known, state.client, state.run, state.sources = {}, AsyncClient(url, token=token), run_id, sources or {}
        state.gate = {"paused": False, "retry_after_seconds": 5, "reason": None}
        state.resumed = asyncio.Event()
        state.resumed.set()
        state.rollouts = Rollouts(state.client, run_id, model=model)
        async with state.client, state.rollouts, asyncio.TaskGroup() as state.work:
            yield
            for each in state.known.values():
                each.work.cancel()

    return Starlette(routes=ROUTES, lifespan=lifespan)


async def enqueue(request: Request) -> Response:
    state = request.app.state
    try:
        asked = [LightningRollout(each, state.sources) for each in await request.json()]
    except (ValueError, KeyError, TypeError, AttributeError, ProrlError) as error:
        raise HTTPException(422, f"a rollout has no task that can be read: {error}") from error
    for each in asked:
        if each.name not in state.known:
            each.work = state.work.create_task(each.make(state.rollouts, state.resumed), name=f"rollout {each.name}")
            state.known[each.name] = each
    return JSONResponse([state.known[each.name].shown for each in asked], 201)


def _found(request: Request) -> LightningRollout:
    found: LightningRollout | None = request.app.state.known.get(request.path_params["name"])
    if found is None:
        raise HTTPException(404, f"Rollout not found: {request.path_params['name']}")
    return found


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
    """Adds what a trainer's hook says, such as another reward: the last one counts."""
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


async def pause(request: Request) -> Response:
    """Holds the run: what waits stays there, and turns under way end. They are `inflight` until they have."""
    asked = await request.json() if await request.body() else {}
    state = request.app.state
    state.resumed.clear()
    state.gate = {**state.gate, **{name: asked[name] for name in state.gate if name in asked}, "paused": True}
    return JSONResponse({**state.gate, "inflight": await _held(state)})


async def resume(request: Request) -> Response:
    state = request.app.state
    state.gate = {**state.gate, "paused": False, "reason": None}
    await _of_run(state.client.resume("run", state.run))
    state.resumed.set()
    return JSONResponse({**state.gate, "inflight": 0})


async def gate(request: Request) -> Response:
    state = request.app.state
    return JSONResponse({**state.gate, "inflight": await _held(state) if state.gate["paused"] else 0})


async def _held(state: Any) -> int:
    """Pauses the run, or again: a repeat tells how many jobs are still under way."""
    answer = await _of_run(state.client.pause("run", state.run, for_s=PAUSE_S))
    return answer.pausing if answer else 0


async def _of_run(call: Awaitable[PauseAnswer]) -> PauseAnswer | None:
    """None where there is no run yet: it exists from its first rollout on."""
    try:
        return await call
    except NotFound:
        return None
    except ServiceError as error:
        if error.status == NO_SUCH_RUN:
            return None
        raise


ROUTES = [
    Route("/healthz", lambda _: JSONResponse({"status": "ok"})),
    Route("/api/rollouts", enqueue, methods=["POST"]),
    Route("/api/rollouts/{name}", show),
    Route("/api/rollouts/{name}", delete, methods=["DELETE"]),
    Route("/api/rollouts/{name}/events", show_events),
    Route("/api/rollouts/{name}/attempt/{attempt}/events", add_event, methods=["POST"]),
    Route("/api/models", models, methods=["POST", "DELETE"]),
    Route("/proxy/pause", pause, methods=["POST"]),
    Route("/proxy/resume", resume, methods=["POST"]),
    Route("/proxy/state", gate),
]
