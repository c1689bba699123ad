"""TRL's own trainer trains on rollouts of the service, and evaluates: a tiny model, two steps, on a CPU."""

import asyncio
import os
from asyncio.subprocess import PIPE
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prorl_mq.schema.codec import decode_any
from prorl_mq.schema.ids import group_of
from prorl_mq.schema.messages import Purpose
from tests.api.service import Worker
from tests.converters.made import compacted, with_tools
from tests.vllm.server import state_directory

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("trl")]
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "trl_training.py"


@pytest.fixture
def state() -> Path:
    found = state_directory()
    if not (found / "trl" / ".complete").exists():
        missing = f"{found / 'trl'} is missing: run `make trl`"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


async def graded(worker: Worker, count: int) -> Counter[tuple[str, str]]:
    """Ends jobs with their place in the group as reward, the second with two rows; how many each group had, which has a
    purpose.
    """
    seen: Counter[tuple[str, str]] = Counter()
    for _ in range(count):
        held = await worker.in_run()
        group = group_of(held.ref)
        spec = decode_any(await worker.store.read("GET", worker.keys.open(group)))
        seen[group, spec.get("purpose", Purpose.TRAIN)] += 1
        place = int(held.ref.rpartition(":")[2])
        await worker.finish(held, float(place), trajectory=(compacted() if place else with_tools()).trajectory)
    return seen


async def test_a_grpo_trainer_learns_from_groups_of_the_service(
    state: Path, url: str, worker: Worker, tmp_path: Path
) -> None:
    """Its repeats of a prompt are one group, all rows of a sample have its advantage, and its weights move. What it
    evaluates is an evaluation.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (state / "trl/site-packages", ROOT))),
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [state / "vllm/bin/python", PROGRAM, url, state / "models/tiny", tmp_path]
    program = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=environment)
    assert program.stdout is not None
    try:
        async with asyncio.timeout(500):
            while (line := await program.stdout.readline()) != b"ready\n":
                assert line, "it ended before it began to train"
            seen = await graded(worker, 9)
            said, _ = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert program.returncode == 0
    asked = sorted((str(purpose), count) for (_, purpose), count in seen.items())
    assert asked == [("eval", 1), *[("train", 2)] * 4]
    told = msgspec.json.decode(said.splitlines()[-1])
    assert told["evaluated"]["eval_reward"] == 0.0
    assert told["changed"] > 1e-3
    steps: list[dict[str, Any]] = [each for each in told["logs"] if "reward" in each]
    assert [each["reward"] for each in steps] == [0.5, 0.5]
    assert [each["completions/mean_length"] for each in steps] == [34 / 8] * 2  # sampled tokens of six rows, two empty
    for rows in told["made"][:8], told["made"][8:16]:
        assert sorted(tokens for tokens, _ in rows) == [0, 0, 3, 3, 6, 6, 8, 8]
        assert len({advantage for tokens, advantage in rows if tokens in {3, 6}}) == 1
        assert all((advantage < 0) == (tokens == 8) for tokens, advantage in rows if tokens)
