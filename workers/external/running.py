"""A rollout by a harness: it acts and asks in the sandbox, what it asks is recorded, its end is the rollout's."""

import asyncio
import contextlib
import json
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from prorl_mq.schema.faults import Cause
from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Trajectory
from sandbox.errors import SandboxError
from sandbox.isolators import socket_dir
from sandbox.lifetime import label
from sandbox.protocol import ProcessResult, Sandbox
from workers.agent.renderer import Renderer
from workers.agent.result import LoopEnd
from workers.egress import programs
from workers.external.gateway import Gateway
from workers.external.harness import Harness
from workers.external.interception import Interceptor, OwingInterceptor
from workers.external.recording import Recording
from workers.external.request import apart
from workers.handler import OtherModel, SandboxLost
from workers.inference.protocol import Policy
from workers.inference.run_clock import RunClock, clock_until

_MARGIN_S = 5.0  # kept of RUN's budget to hand over what there is
_INSIDE = Path(__file__).with_name("inside.py")


class HarnessFailed(Exception):
    """A harness could not start, or not in time, or gave up before its first answer, or over a request that we refuse.
    The policy is not to blame.
    """

    cause = Cause.SANDBOX


class ExternalResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished rollout, and what the harness printed last."""

    trajectory: Trajectory | None
    stop: LoopEnd
    exit_code: int | None
    printed: str


async def run_external(
    *,
    harness: Harness,
    task: str,
    workdir: str,
    policy: Policy,
    renderer: Renderer,
    sandbox: Sandbox,
    sampling: Sampling,
    sample: str,
    deadline: RunClock | float,
    interceptor: Interceptor | None = None,
    others: Mapping[str, OtherModel] = {},
) -> ExternalResult:
    """One rollout. `others`: models of other pools by the names that the harness asks them by.

    Raises `ValueError` for `others` by the policy's names, `InferenceError` when the policy could not be reached,
    `HarnessFailed`, `SandboxError`, and what the interceptor raises.
    """
    apart(others)
    watched = None if interceptor is None else OwingInterceptor(interceptor)
    recording = Recording(policy, renderer, sampling, sample, watched, others=others)
    gateway = Gateway(recording)
    clock = clock_until(deadline)
    keep_s, done = min(_MARGIN_S, clock.left_s / 10), None
    timeout_s = max(0.1, 2 * clock.left_s)  # a distant stop: the clock decides
    try:
        async with gateway.listening(Path(sandbox.handle.door)):
            with contextlib.suppress(TimeoutError):
                async with clock.limit(keep_s):
                    fill = _fill(gateway.key, workdir, sampling)
                    begun = _start(sandbox, harness, fill, task, workdir, timeout_s)
                    done = await _until_over(begun, recording, sandbox, watched)
            gateway.revoke()
    except SandboxError as error:
        sampled = await recording.trajectory(LoopEnd(reason="sandbox"))
        if sampled is None:
            raise
        raise SandboxLost(f"{type(error).__name__}: {error}", sampled) from error
    if recording.failure is not None:
        raise recording.failure
    stop = recording.stop or _stop(done)
    printed = "" if done is None else (done.stdout + done.stderr).decode(errors="replace")[-2000:]
    if not recording.asked or (recording.turns == 0 and stop.truncated_by is None):
        raise HarnessFailed(f"the harness ended with {stop.reason} before anything was answered: {printed[-500:]}")
    if gateway.refused and recording.stop is None and done is not None and not done.timed_out and done.exit_code:
        raise HarnessFailed(f"the harness gave up ({stop.reason}) when its request was refused: {gateway.refused}")
    return ExternalResult(
        trajectory=await recording.trajectory(stop),
        stop=stop,
        exit_code=None if done is None else done.exit_code,
        printed=printed,
    )


def _fill(key: str, workdir: str, sampling: Sampling) -> Mapping[str, str]:
    """Values for the names in a harness's description. Its address is known inside alone."""
    context, turn = sampling.max_context_tokens, sampling.max_tokens_per_turn
    return {"{key}": key, "{workdir}": workdir, "{context_tokens}": str(context), "{turn_tokens}": str(turn)}


async def _start(
    sandbox: Sandbox, harness: Harness, fill: Mapping[str, str], task: str, workdir: str, timeout_s: float
) -> ProcessResult:
    given = {
        "socket": f"{socket_dir.INSIDE}/{label.SOCKET}",
        "fill": fill,
        "task": task,
        "workdir": workdir,
        "argv": harness.argv,
        "environment": dict(harness.environment),
    }
    command = programs.argv(_INSIDE)
    return await sandbox.run(command, stdin=json.dumps(given).encode() + b"\n", timeout_s=timeout_s)


async def _until_over(
    running: Coroutine[Any, Any, ProcessResult],
    recording: Recording,
    sandbox: Sandbox,
    watched: OwingInterceptor | None,
) -> ProcessResult | None:
    """The harness's end; None when a limit or a failure of ours stopped it."""
    harness = asyncio.ensure_future(running)
    over = asyncio.ensure_future(recording.over.wait())
    try:
        await asyncio.wait({harness, over}, return_when=asyncio.FIRST_COMPLETED)
        if harness.done():
            return harness.result()
        await sandbox.interrupt()
    except asyncio.CancelledError:  # the time is up
        if watched is not None and watched.owed:  # which the policy did not spend
            recording.fail(TimeoutError(f"{watched.name} did not answer before RUN's time was up"))
        raise
    else:
        return None
    finally:
        for task in (harness, over):
            task.cancel()
        await asyncio.gather(harness, over, return_exceptions=True)


def _stop(done: ProcessResult | None) -> LoopEnd:
    if done is None or done.timed_out:
        return LoopEnd(reason="time", truncated_by="time")
    return LoopEnd(reason="finish" if done.exit_code == 0 else f"exit code {done.exit_code}")
