"""The verifier: the task's tests in a fresh sandbox, over what the agent left, and the reward that they write.

Its exit code says nothing. Without a reward that can be read there is no score: that is the infrastructure's, or the
task's, and never a zero.
"""

import json
import math
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from prorl_mq.schema.faults import Cause
from sandbox.protocol import Sandbox, SandboxLimits
from workers.handler import Score
from workers.handlers.clocks import OF_THE_BUDGET
from workers.handlers.harbor import artefact, files, place
from workers.handlers.harbor.images import image_of
from workers.handlers.harbor.row import HiddenTests, TaskRow

TESTS, VERIFIER = "/tests", "/logs/verifier"
REWARD_BYTES = 64 << 10
OUTPUT = f"{VERIFIER}/test-stdout.txt"


class NoReward(Exception):
    """A verifier that left no reward, or none that can be read. `printed` is what it said, which is not for records."""

    cause = Cause.ROW

    def __init__(self, message: str, printed: bytes = b"") -> None:
        super().__init__(message)
        self.printed = printed.decode(errors="replace")


class VerifierTimeout(Exception):
    """A verifier that did not end in its time. Harbor gives no reward then, either."""

    cause = Cause.TIMEOUT


class MakeSandbox(Protocol):
    """A context that makes sandboxes."""

    def sandbox(self, image: str, *, writable: Any, empty: Any, limits: SandboxLimits) -> Awaitable[Sandbox]: ...


def eval_ms(verifier_s: float) -> int:
    """EVAL's budget in which a verifier has all of its time."""
    return int((verifier_s / OF_THE_BUDGET + 60) * 1000)


async def verify(make: MakeSandbox, row: TaskRow, hidden: HiddenTests, archive: bytes, left_s: float) -> Score:
    """The score of what the agent left. Raises `NoReward`, `VerifierTimeout`, `SandboxError`."""
    sandbox = await _container(make, row, hidden)
    await artefact.put(sandbox, row, archive)
    own = hidden.image is None
    await artefact.clear(sandbox, VERIFIER, *([TESTS] if own else []))
    if own:
        await files.put(sandbox, hidden.tests, TESTS)
    await artefact.unlink(sandbox, row)
    await _test(sandbox, row, hidden, left_s)
    return await _reward(sandbox)


async def _container(make: MakeSandbox, row: TaskRow, hidden: HiddenTests) -> Sandbox:
    if hidden.image is not None:
        limits = place.limits(hidden.memory_mb, hidden.storage_mb)
        workdir = [hidden.workdir] if hidden.workdir else []
        empty = [*row.empty, *(each for each in row.writable if each not in workdir)]
        sandbox = await make.sandbox(image_of(hidden.image), writable=workdir, empty=empty, limits=limits)
        await sandbox.run(["mkdir", "-p", *place.LOGS])
        if hidden.healthcheck is not None:
            await place.healthy(sandbox, hidden.healthcheck, hidden.image_environment, hidden.workdir or "/")
        return sandbox
    limits = place.limits(hidden.memory_mb or row.memory_mb, hidden.storage_mb or row.storage_mb)
    empty = [*row.empty, TESTS]
    sandbox = await make.sandbox(image_of(row.image), writable=row.writable, empty=empty, limits=limits)
    await place.furnish(sandbox, row)
    return sandbox


async def _test(sandbox: Sandbox, row: TaskRow, hidden: HiddenTests, left_s: float) -> None:
    environment = {**(hidden.image_environment if hidden.image else row.environment), **hidden.environment}
    workdir = (hidden.workdir or "/") if hidden.image else row.workdir
    command = f"chmod +x {TESTS}/test.sh 2>/dev/null; {TESTS}/test.sh >{OUTPUT} 2>&1"
    timeout_s = min(hidden.timeout_s, left_s)
    done = await sandbox.run(place.in_container(environment, workdir, command), timeout_s=timeout_s, alone=True)
    if done.timed_out:
        short = (
            "" if timeout_s == hidden.timeout_s else f"; the task allows {hidden.timeout_s:.0f} s: raise limits.eval_ms"
        )
        raise VerifierTimeout(f"the verifier did not end within {timeout_s:.0f} s{short}")


async def _reward(sandbox: Sandbox) -> Score:
    """reward.json goes before reward.txt."""
    for name, read in (("reward.json", _of_json), ("reward.txt", _of_text)):
        try:
            data = await sandbox.read_file(f"{VERIFIER}/{name}", limit_bytes=REWARD_BYTES)
        except FileNotFoundError:
            continue
        try:
            return read(data)
        except (ValueError, OverflowError, RecursionError) as error:
            raise NoReward(f"{VERIFIER}/{name} cannot be read: {error}", await _printed(sandbox)) from error
    raise NoReward(f"the verifier wrote neither {VERIFIER}/reward.json nor reward.txt", await _printed(sandbox))


def _of_text(data: bytes) -> Score:
    return Score(reward=_finite("reward", float(data.decode())))


def _of_json(data: bytes) -> Score:
    """`reward`, or the only number there is; the others are parts."""
    found = json.loads(data)
    if not isinstance(found, Mapping) or not found:
        raise ValueError("it is no JSON object of numbers")
    numbers = {str(name): _finite(name, value) for name, value in found.items()}
    key = "reward" if "reward" in numbers else next(iter(numbers))
    if key != "reward" and len(numbers) > 1:
        raise ValueError(
            f"none of {', '.join(sorted(numbers))} is `reward`, and which one counts nobody says: write it"
        )
    reward = numbers.pop(key)
    return Score(reward=reward, parts=numbers)


def _finite(name: object, value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r:.60}, which is no finite number")
    return float(value)


async def _printed(sandbox: Sandbox) -> bytes:
    done = await sandbox.run(["tail", "-c", "4000", OUTPUT])
    return done.stdout
