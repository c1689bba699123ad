"""Two policies and a judge in one service: three pools, each with a vocabulary of its own, from end to end."""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from prorl_mq.client import AsyncClient
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Limits, SampleRecord, Task
from prorl_mq.store.server.connection import RedisSettings
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import FakeSampling, Reply
from tests.cli.conftest import Up, state
from tests.formats.test_start import worker
from tests.worker.test_start import environment, first_line
from workers.handlers.stem.judge import URLS, VOTES
from workers.rehearsal.policy import BARE, tokenizer

__all__ = ["state"]
pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]
POOLS = ("policy", "student", "judge")
DEAD = "http://127.0.0.1:9"
TASK = Task(
    task_id="light",
    data_source="stem",
    payload={
        "prompt": [{"role": "user", "content": "How fast is light?"}],
        "reward_model": {"ground_truth": "300000 kilometres each second"},
        "tools": False,
    },
)


class Speaker:
    """A model that reads its prompt by its own vocabulary, and says something about it."""

    def __init__(self, directory: Path, say: Any) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        self.say = say
        self.prompts: list[Sequence[int]] = []
        self.read: list[str] = []

    def __call__(self, prompt_ids: Sequence[int], params: FakeSampling) -> Reply:
        self.prompts.append(prompt_ids)
        self.read.append(str(self.tokenizer.decode(prompt_ids)))
        ids = self.tokenizer.encode(self.say(self.read[-1]), add_special_tokens=False)
        end = self.tokenizer.eos_token_id
        return Reply(ids=[*ids, end][: params.max_tokens], finish_reason="stop")


def verdict(prompt: str) -> str:
    """Right if it reads an answer that means the same; it can read only its own ids."""
    answers = [line for line in prompt.splitlines() if line.startswith("Candidate's answer: ")]
    right = bool(answers) and json.loads(answers[0].partition(": ")[2]) == "3e5 km every second"
    return f"Hm.\nVERDICT: {'YES' if right else 'NO'}"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tokenizers of the same bytes with other ids, and the file that gives each pool one."""
    place = tmp_path_factory.mktemp("models")
    for name in POOLS:
        made = tokenizer(BARE)
        made.save_pretrained(place / name)
        file = place / name / "tokenizer.json"
        plain = json.loads(file.read_text())
        letters = list(plain["model"]["vocab"])
        random.Random(name).shuffle(letters)
        plain["model"]["vocab"] = {letter: number for number, letter in enumerate(letters)}
        file.write_text(json.dumps(plain))
    tables = "".join(f'[pools.{name}]\ntokenizer = "{name}"\n' for name in POOLS)
    (place / "models.toml").write_text(tables)
    return place


@pytest.fixture
def service(state: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    monkeypatch.setenv("PRORL_MODELS", str(models / "models.toml"))
    monkeypatch.setenv(URLS, "pool:judge")
    monkeypatch.setenv(VOTES, "3")
    up = Up(state, "--sandbox", "none")
    yield up
    up.end()


async def sample(client: AsyncClient, pool: str, name: str, eval_ms: int = 60_000) -> SampleRecord:
    limits = Limits(run_ms=60_000, eval_ms=eval_ms, total_ms=200_000, max_attempts=1)
    group = GroupRequest(task=TASK, group_id=name, max_refills=0)
    await client.submit(BatchRequest(run_id="three", batch_id=name, groups=[group], pool=pool, limits=limits))
    async for closed in client.groups("three", name):
        return closed.record.samples[0]
    raise AssertionError("the batch has no group")


async def test_a_judge_of_its_own_pool_scores_two_policies(service: Up, models: Path) -> None:
    """Each model reads text that only its own vocabulary gives. Without a living judge there is no reward; where one
    of two is dead, it is passed over.
    """
    right = Speaker(models / "policy", lambda _: r"\boxed{3e5 km every second}")
    wrong = Speaker(models / "student", lambda _: r"\boxed{as fast as a hare}")
    judge = Speaker(models / "judge", verdict)
    url = await asyncio.to_thread(lambda: service.url)
    async with (
        FakeBackend(reply=right) as one, FakeBackend(reply=wrong) as two, FakeBackend(reply=judge) as three,
        AsyncClient(url, token=service.token) as client,
    ):  # fmt: skip
        for pool, address in {"policy": one.address, "student": two.address, "judge": DEAD}.items():
            await client.add_backend(pool, address)
        unjudged = await sample(client, "policy", "unjudged", eval_ms=2_000)
        await client.add_backend("judge", three.address)
        found = {pool: await sample(client, pool, pool) for pool in ("policy", "student")}
    assert (unjudged.reward, unjudged.error is None) == (None, False)
    assert {pool: (each.reward, each.error) for pool, each in found.items()} == {
        "policy": (1.0, None), "student": (0.0, None),
    }  # fmt: skip
    assert found["policy"].note == "judge pool:judge: YES YES YES"
    assert found["student"].evidence["judge"] == "pool:judge"
    for speaker, other in ((right, wrong), (wrong, right)):
        assert any("How fast is light?" in text for text in speaker.read)
        assert not any("How fast is light?" in other.tokenizer.decode(ids) for ids in speaker.prompts), "the control"
    asked = [text for text in judge.read if text.count("Candidate's answer") == 1]
    assert len(asked) >= 6, "three votes for each answer"


def test_an_eval_worker_that_cannot_render_for_its_judge_does_not_start(
    redis_server: RedisSettings, models: Path, tmp_path: Path
) -> None:
    argv = worker(redis_server, tmp_path / "state", "--handlers", "stem")
    argv[argv.index("--stage") + 1] = "eval"
    said = first_line(argv, {**environment(), URLS: "pool:judge"}, "pool judge, which a task family asks in EVAL")
    assert "no tokenizer is configured" in said
