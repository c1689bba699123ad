"""NeMo Gym: an agent server whose `/run` is a rollout of the service.

    PRORL_URL=http://127.0.0.1:8080 uvicorn nemo_gym_agent:app --port 8300

A row of the data set names its task in `prorl`: `{"task_id", "data_source", "payload"}`. The answer is the row with
`response` (an OpenAI Responses object whose items carry token fields) and `reward`. A rollout without a reward is 503,
which the caller repeats; a row without a task is 422, which it does not.
"""

import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from prorl_mq.client import AsyncClient
from prorl_mq.client.rollouts import Rollouts, sampling_of
from prorl_mq.converters import nemo_gym
from prorl_mq.converters.rollout import Rollout
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.messages import Sampling, Task
from prorl_mq.schema.strict import Misfit, convert


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """One reader of results for all requests."""
    client = AsyncClient(os.environ["PRORL_URL"], token=os.environ.get("PRORL_TOKEN"))
    async with client, Rollouts(client, os.environ.get("PRORL_RUN", "nemo-gym")) as app.state.rollouts:
        yield


async def run(request: Request) -> Response:
    """One sample of the row's task."""
    try:
        row: dict[str, Any] = json.loads(await request.body())
        task = convert(row["prorl"], Task)
        asked: dict[str, Any] = row["responses_create_params"]
        sampling = sampling_of({**asked, "max_tokens": asked.get("max_output_tokens")})
    except (ValueError, KeyError, TypeError, Misfit) as error:
        return JSONResponse({"detail": f"the row has no task and parameters that can be read: {error}"}, 422)
    return await _answer(request.app.state.rollouts, row, task, sampling)


async def _answer(rollouts: Rollouts, row: dict[str, Any], task: Task, sampling: Sampling) -> Response:
    try:
        [found] = await rollouts.of(task, sampling=sampling)
    except NotTrainable as error:
        return JSONResponse({"detail": str(error)}, 503, headers={"Retry-After": "1"})
    made = {**row, "response": response(row["responses_create_params"], found), "reward": found.reward}
    return Response(msgspec.json.encode(made), media_type="application/json")


def response(asked: dict[str, Any], found: Rollout) -> dict[str, Any]:
    """The Responses object. Of several rows one, drawn by its share: NeMo RL asserts that prompts continue."""
    return {
        "id": f"resp_{found.sample.job_id}",
        "object": "response",
        "created_at": time.time(),
        "model": str(asked.get("model") or "policy"),
        "output": nemo_gym.items(found)[found.drawn],
        "parallel_tool_calls": True,
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": asked.get("tools") or [],
        "status": "incomplete" if found.trajectory.truncated_by else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if found.trajectory.truncated_by else None,
    }


app = Starlette(routes=[Route("/run", run, methods=["POST"])], lifespan=lifespan)
