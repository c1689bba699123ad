"""A whole service with a model that has vision: every process, sandboxes, vLLM, and what its trainer is given."""

import base64
import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prorl_mq.converters import verl
from prorl_mq.converters.rollout import rollout
from prorl_mq.converters.table import Sample
from prorl_mq.schema.messages import SampleRecord
from prorl_mq.schema.trajectory import Trajectory, check
from prorl_mq.store.payloads.name import PayloadFile
from tests.cli.conftest import Up, prorl
from tests.vision.school import LESSONS, QUESTION, SYSTEM, TOOLS, Lesson
from tests.vision.scoring import forward, largest_difference

pytestmark = pytest.mark.anyio


@pytest.fixture
def service(
    address: str, model: Path, state_dir: Path, python_path: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Up]:
    """`prorl-mq up`, whose RUN worker takes torch from vLLM's environment."""
    [packages] = (state_dir / "vllm/lib").glob("python3*/site-packages")
    monkeypatch.setenv("PYTHONPATH", f"{python_path}:{Path(__file__).parents[2]}")
    monkeypatch.setenv("TORCH_SITE", str(packages))
    monkeypatch.setenv("PRORL_SANDBOX_TOOLS", str(state_dir))
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        Path(name).chmod(0o755)  # for sandboxes' users
        monkeypatch.setenv("PRORL_STATE", f"{name}/state")
        started = Up(Path(name) / "state", "--tokenizer", model, "--backend", address)
        try:
            started.wait_for("Ctrl-C drains")
            yield started
        finally:
            if started.process.poll() is None:
                started.end(signal.SIGTERM)


def row(lesson: Lesson) -> dict[str, Any]:
    image = base64.b64encode(lesson.image.data).decode()
    payload = {
        "prompt": [{"role": "user", "content": QUESTION}], "system": SYSTEM, "tools": TOOLS,
        "images": [f"data:image/png;base64,{image}"], "reward_model": {"ground_truth": lesson.answer},
    }  # fmt: skip
    return {"task_id": lesson.colour, "data_source": "math", "payload": payload}


def submitted(service: Up, directory: Path, *lessons: Lesson) -> dict[str, Sample]:
    tasks, out = directory / "tasks.jsonl", directory / "out.jsonl"
    tasks.write_text("".join(json.dumps(row(each)) + "\n" for each in lessons))
    sampling = ("--sampling", "temperature=0.1", "max_turns=4", "max_tokens_per_turn=512", "max_tokens=1024")
    done = prorl("submit", tasks, *sampling, "--out", out, "--url", service.url)
    logs = "\n".join(path.read_text()[-2000:] for path in service.state.rglob("*.log"))
    assert done.returncode == 0, (done.stderr, logs)
    found = [msgspec.json.decode(line, type=Sample) for line in out.read_bytes().splitlines()]
    return {each.task_id: each for each in found}


def seen(sample: Sample) -> Trajectory:
    assert sample.trajectory is not None, sample
    check(sample.trajectory)
    return sample.trajectory


def test_images_go_through_every_process_and_come_back_id_by_id(
    service: Up, model: Path, state_dir: Path, python_path: str, tmp_path: Path
) -> None:
    """The question is the same, and only who has seen its image calls the right tool and gives the right answer. In the
    last one the policy writes an image in its sandbox, and a tool shows it.
    """
    found = submitted(service, tmp_path, *LESSONS)
    for lesson in LESSONS:
        sample = found[lesson.colour]
        trajectory = seen(sample)
        assert sample.reward == 1.0, trajectory.turns
        assert [[call.result for call in turn.tool_calls] for turn in trajectory.turns] == [
            *([result] for result in lesson.results), [],
        ]  # fmt: skip
        [segment] = trajectory.segments
        assert trajectory.images == lesson.images
        scored = forward(state_dir, python_path, model, trajectory)
        assert list(segment.prompt_ids) == scored["prompt_ids"]
        ids = [*segment.prompt_ids, *segment.response_ids]
        places = [ids[each.start : each.end] for each in segment.images]
        assert [len(place) for place in places] == [6, 4][: len(lesson.images)]
        assert [each for place in places for each in place] == scored["image_ids"]
        assert largest_difference(trajectory, scored) < 1e-3
        about = SampleRecord(job_id=sample.job_id, index=0, outcome=sample.outcome, reward=sample.reward)
        [exported] = verl.outputs(rollout(lesson.colour, about, trajectory))
        assert exported["prompt_ids"] == scored["prompt_ids"]
        sizes = [(each.width, each.height) for each in lesson.images]
        assert [each.size for each in exported["multi_modal_data"]["images"]] == sizes
        named = PayloadFile.of(lesson.image.data)
        assert any(named.digest in str(path) for path in (service.state / "redis/payloads").rglob("*"))
