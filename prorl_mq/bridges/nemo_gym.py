"""NeMo Gym 0.4 to 0.7, and NeMo RL through it: an agent server whose `/run` is a rollout of the service.

    PRORL_URL=http://127.0.0.1:8080 uvicorn prorl_mq.bridges.nemo_gym:app --port 8300

Rows are those of `tasks`; the prompt is `responses_create_params.input`. The answer is the row with `response` (an
OpenAI Responses object whose items carry token fields) and `reward`.

* Limits: `max_output_tokens` is that of a completion; `prorl_limits` of the row may have any of the limits of
  `Sampling`, such as `max_turns`.
* Rows: NeMo RL asserts that the prompts of a response continue each other, so a response is one row, drawn by its
  share of the sample's trained tokens. The loss that fits averages each sequence first (`token_level_loss: false`).
* A sample that was lost is 503 with the cause, which NeMo RL counts as infrastructure and repeats; a row without a
  task is 422, which it does not repeat. No reward is made up.
"""

import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from prorl_mq.bridges.tasks import task_of
from prorl_mq.bridges.theirs import address
from prorl_mq.client import AsyncClient
from prorl_mq.client.rollouts import Rollouts, sampling_of
from prorl_mq.converters import nemo_gym
from prorl_mq.converters.rollout import Rollout
from prorl_mq.errors import InvalidBatch, InvalidTask, NotTrainable, ServiceError, UnknownDataSource
from prorl_mq.schema.messages import Purpose, Sampling, Task

try:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise ImportError("this bridge is a server: pip install 'prorl-mq[service]'", name=error.name) from error

RETRY = {"Retry-After": "1"}
TASK, REPEAT, MASKED = "_ng_task_index", "_ng_rollout_index", "mask_sample"  # NeMo Gym's names


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    made = globals()[name] = create_app(*address())
    return made


def create_app(
    url: str,
    token: str | None = None,
    *,
    run_id: str = "nemo-gym",
    sources: Mapping[str, str] | None = None,
    model: str = "",
) -> Starlette:
    """The server of one run. `sources` renames data sources to those of task families; `model`: whose rows it gives."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        """One reader of results for all requests."""
        async with (
            AsyncClient(url, token=token) as client,
            Rollouts(client, run_id, model=model) as app.state.rollouts,
        ):
            yield

    routes = [
        Route("/run", run, methods=["POST"]),
        Route("/aggregate_metrics", aggregate, methods=["POST"]),
        Route("/healthz", lambda _: JSONResponse({"status": "ok"})),
    ]
    made = Starlette(routes=routes, lifespan=lifespan)
    made.state.sources = dict(sources or {})
    return made


async def run(request: Request) -> Response:
    """One sample of the row's task."""
    try:
        row: dict[str, Any] = json.loads(await request.body())
        asked: dict[str, Any] = row["responses_create_params"]
        task = task_of({"prompt": asked.get("input"), **row}, request.app.state.sources)
        sampling = _sampling(asked, row.get("prorl_limits") or {})
    except (ValueError, KeyError, TypeError, AttributeError, InvalidTask, InvalidBatch) as error:
        why = f"the row has no task and parameters that can be read: {error}"
        return JSONResponse({"detail": why}, 422)
    return await _answer(request.app.state.rollouts, row, task, sampling)


def _sampling(asked: Mapping[str, Any], limits: Mapping[str, int]) -> Sampling:
    tokens = asked.get("max_output_tokens")
    whole = {"max_tokens": tokens} if tokens and tokens > Sampling().max_tokens else {}
    return sampling_of({**asked, "max_tokens": tokens}, **(whole | dict(limits)))


async def _answer(rollouts: Rollouts, row: dict[str, Any], task: Task, sampling: Sampling) -> Response:
    purpose = Purpose.EVAL if row.get("is_validation") else Purpose.TRAIN
    try:
        [found] = await rollouts.of(task, sampling=sampling, purpose=purpose)
    except NotTrainable as error:
        return JSONResponse({"detail": str(error)}, 503, headers=RETRY)
    except (ServiceError, InvalidTask, UnknownDataSource) as error:
        refused = not isinstance(error, ServiceError) or (400 <= error.status < 500 and error.status != 429)
        return JSONResponse({"detail": str(error)}, 422 if refused else 503, headers={} if refused else RETRY)
    made = {**row, "response": response(row["responses_create_params"], found), "reward": found.reward}
    return Response(msgspec.json.encode(made), media_type="application/json")


def response(asked: Mapping[str, Any], found: Rollout) -> dict[str, Any]:
    """The Responses object. Of several rows one, drawn by its share."""
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


async def aggregate(request: Request) -> Response:
    """Metrics of answers of `/run` that Gym has collected."""
    try:
        answers = json.loads(await request.body())["verify_responses"]
        return JSONResponse(aggregated(answers))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return JSONResponse({"detail": f"no list `verify_responses` that can be read: {error!r}"}, 422)


def aggregated(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Gym's `AggregateMetrics`: of each task, and of all. Masked answers are counted, not averaged."""
    if not answers:
        return {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}
    scored = [each for each in answers if not each.get(MASKED)]
    tasks: dict[int, list[Mapping[str, Any]]] = {}
    for each in scored:
        tasks.setdefault(each.get(TASK, 0), []).append(each)
    total = _described(scored)
    coverage: dict[str, float] = {}
    if len(scored) < len(answers):
        coverage = {
            "coverage/measured_rollouts": len(scored),
            "coverage/masked_rollouts": len(answers) - len(scored),
            "coverage/measured_tasks": len(tasks),
            "coverage/fully_masked_tasks": len({each.get(TASK, 0) for each in answers}) - len(tasks),
        }
    return {
        "group_level_metrics": [{TASK: task, **_described(tasks[task])} for task in sorted(tasks)],
        "agent_metrics": {**total, **coverage, "num_repeats": len({each.get(REPEAT, 0) for each in answers})},
        "key_metrics": {name: value for name, value in total.items() if name.startswith("mean/")} | coverage,
    }


def _described(answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Statistics of each number that the answers have, but Gym's own indices."""
    names = sorted({name for each in answers for name, value in each.items() if _is_number(name, value)})
    made: dict[str, float] = {}
    for name in names:
        values = [float(each[name]) for each in answers if _is_number(name, each.get(name))]
        made |= {
            f"mean/{name}": statistics.fmean(values),
            f"max/{name}": max(values),
            f"min/{name}": min(values),
            f"median/{name}": statistics.median(values),
            f"std/{name}": statistics.stdev(values) if len(values) > 1 else 0.0,
        }
    return made


def _is_number(name: str, value: Any) -> bool:
    return isinstance(value, bool | int | float) and not name.startswith("_ng_") and name != MASKED
