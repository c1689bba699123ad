"""`python -m tests.golden.make FOLDER`: one file of every format that this version writes, for later versions to read.

Run it once at a release, in the release's own tree; the files are never made again.
"""

import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from prorl_mq.cli import main
from prorl_mq.cli.out_file import OutFile
from prorl_mq.converters import agent_lightning, nemo_gym, prorl, rllm, skyrl, verl
from prorl_mq.converters.rollout import Rollout
from prorl_mq.schema.codec import encode, encode_trajectory
from prorl_mq.schema.dapo import Accuracy, Dapo, Surplus
from prorl_mq.schema.intake import (
    Acknowledge,
    AddBackend,
    AnnouncePolicy,
    Cancel,
    Configure,
    IntakeAnswer,
    ListRuns,
    Submit,
)
from prorl_mq.schema.messages import (
    BatchRequest,
    ErrorInfo,
    GroupRecord,
    GroupRequest,
    Limits,
    Outcome,
    RewardStats,
    SampleRecord,
    Sampling,
    Task,
    Verdict,
)
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import BatchReport, Spent
from prorl_mq.schema.trajectory import Segment, Trajectory
from tests.converters import made

TOOLS = [{"type": "function", "function": {"name": "think", "parameters": {"type": "object", "properties": {}}}}]
LINE = "1700000000000\tadmit\tinit\t\t\tsubmitted_ms=1699999999000\n1700000000500\tclaim\tinit\t1\tinit-0\t\n"


def rollouts() -> dict[str, Rollout]:
    """The rollouts that converters are tested with."""
    return {name.replace(" ", "-"): make() for name, make in made.ALL.items()}


def trajectories() -> dict[str, Trajectory]:
    """Large, small and without tokens; one of them with the tools that the model was shown."""
    found = {name: each.trajectory for name, each in rollouts().items()}
    tooled = found["with-tools"]
    fields = {name: getattr(tooled, name) for name in tooled.__struct_fields__}
    found["with-tools"] = Trajectory(**{**fields, "tools": TOOLS})
    empty = Segment(prompt_ids=[1], response_ids=[2], loss_mask=[0], logprobs=[None])
    return {**found, "without-tokens": Trajectory(segments=[empty], turns=[], stop_reason="cancelled")}


def sample(group: str, index: int, outcome: Outcome = Outcome.COMPLETED, **more: Any) -> SampleRecord:
    return SampleRecord(job_id=f"run:{group}:{index}", index=index, outcome=outcome, **more)


def records() -> dict[str, GroupRecord]:
    """An accepted group with a refill, one that failed, and one of a DAPO batch."""
    blob = "{prorl}:blob:default:run:g:0:5:trajectory"
    error = ErrorInfo(type="RuntimeError", message="no image", stage="init", traceback="Traceback ...")
    broken = {"attempt": 2, "seconds": {"init": 1.5}, "error": error, "node": "n0"}
    accepted = [
        sample("g", 0, reward=0.1, reward_parts={"answer": 0.1}, note="close", stop_reason="answer", turns=3,
               prompt_tokens=17, response_tokens=11, tool_calls=2, forks=1, trajectory=blob, trajectory_bytes=512,
               seconds={"init": 0.25, "run": 3.5, "eval": 0.125}, node="n0", evidence={"judge": ["yes", "no"]}),
        sample("g", 1, Outcome.INFRA_ERROR, replaced=True, **broken),
        sample("g", 2, Outcome.TRUNCATED, reward=0.0, truncated_by="turns"),
    ]  # fmt: skip
    about: dict[str, Any] = {"run_id": "run", "task_id": "t-1", "data_source": "sums"}
    return {
        "accepted": GroupRecord(
            **about, batch_id="b", group_id="g", verdict=Verdict.ACCEPTED, samples=accepted, n=2, refills=1,
            rewards=RewardStats(count=2, mean=0.05, std=0.05, min=0.0, max=0.1), advantages=[1.0, None, -1.0],
            timelines={"run:g:0": LINE},
        ),
        "failed": GroupRecord(
            **about, batch_id="b", group_id="f", verdict=Verdict.FAILED, n=1, reason="no sample counts",
            samples=[sample("f", 0, Outcome.INFRA_ERROR, **broken), sample("f", 1, Outcome.CANCELLED, stopped_ms=12.5)],
        ),
        "dapo": GroupRecord(
            **about, batch_id="b2", group_id="d", verdict=Verdict.FILTERED, n=2, reason="all samples were right",
            samples=[sample("d", index, reward=1.0) for index in range(2)], submitted_in="b1", carries=1,
            policy_version=7, bias="surplus=cancel: groups that end early are accepted more often",
        ),
    }  # fmt: skip


def report() -> BatchReport:
    nothing = Spent()
    return BatchReport(
        run_id="run", batch_id="b2", reason="target", target_groups=2, surplus=Surplus.CARRY,
        accepted=Spent(count=2, seconds=4.5, tokens=40), filtered_right=Spent(count=1, seconds=1.0, tokens=20),
        filtered_wrong=nothing, filtered_mixed=nothing, failed=nothing, cancelled=nothing, expired=nothing,
        refilled=nothing, drawn=4, carried_in=1, carried_out=1, acceptance_rate=2 / 3, waste_ratio=0.25, seconds=9.5,
    )  # fmt: skip


def messages() -> dict[str, Any]:
    """Every message of the direct path, and two answers."""
    task = Task(task_id="t-1", data_source="sums", payload={"question": "1 + 1"}, sealed={"answer": 2})
    batch = BatchRequest(
        run_id="run", batch_id="b", groups=[GroupRequest(task=task, n=2, group_id="g", max_refills=1)],
        sampling=Sampling(temperature=0.7, seed=3, max_turns=4), limits=Limits(run_ms=60_000), tools=["bash"],
        priority=2, max_staleness=1,
    )  # fmt: skip
    other = [GroupRequest(task=task, n=2, group_id="h")]
    dapo = Dapo(target_groups=1, filter=Accuracy(least=0.1, most=0.9), surplus=Surplus.ORDERED)
    return {
        "submit": Submit(reply="1", batch=batch),
        "submit-dapo": Submit(reply="2", batch=BatchRequest(run_id="run", batch_id="b2", groups=other, dapo=dapo)),
        "ack": Acknowledge(reply="3", cursors=["1700000000000-0"]),
        "cancel": Cancel(reply="4", kind="group", id="run:g"),
        "policy": AnnouncePolicy(reply="5", pool="policy", version=7, mode="drain", weights="/models/7"),
        "backend": AddBackend(reply="6", pool="policy", address="http://b:8000", protocol="completions", model="m"),
        "configure": Configure(reply="7", settings=RunSettings(weight=2.0, max_jobs=64)),
        "runs": ListRuns(reply="8"),
        "answer": IntakeAnswer(reply="1", ok=True, value={"groups": ["g"]}, status=202),
        "refusal": IntakeAnswer(reply="2", ok=False, error="Redis is full", status=429, retry_after_ms=2000),
    }


def converted() -> dict[str, Any]:
    """What every converter makes of the same rollouts."""
    return {
        name: {
            "verl": verl.outputs(each), "skyrl": skyrl.output([each]), "nemo_gym": nemo_gym.items(each),
            "rllm": rllm.model_outputs(each), "agent_lightning": agent_lightning.events(each),
            "prorl": [prorl.messages(each.trajectory, segment=number) for number, _ in each.segments],
        }
        for name, each in rollouts().items()
    }  # fmt: skip


def whole(value: Any) -> Any:
    """A value with every field, those at their defaults too, in the types of JSON."""
    if isinstance(value, msgspec.Struct):
        return {name: whole(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): whole(each) for name, each in value.items()}
    return [whole(each) for each in value] if isinstance(value, list | tuple) else value


def write(folder: Path) -> None:
    folder.mkdir(parents=True)
    packed = {
        **{f"record-{name}.msgpack": (each, encode(each)) for name, each in records().items()},
        **{f"trajectory-{name}.bin": (each, encode_trajectory(each)) for name, each in trajectories().items()},
        **{f"direct-{name}.msgpack": (each, encode(each)) for name, each in messages().items()},
        "report.msgpack": (report(), encode(report())),
    }
    for name, (_, data) in packed.items():
        (folder / name).write_bytes(data)
    with OutFile(folder / "out.jsonl") as out:
        for record in records().values():
            out.write(record, {"run:g:0": trajectories()["with-tools"], "run:g:2": trajectories()["compacted"]})
    assert main(["export", str(folder / "out.jsonl"), "--out", str(folder / "export.jsonl")]) == 0
    expected = {name: whole(value) for name, (value, _) in packed.items()}
    for name, value in (("expected.json", expected), ("converted.json", whole(converted()))):
        text = msgspec.json.format(msgspec.json.encode(value, order="deterministic"), indent=1)
        (folder / name).write_bytes(text + b"\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
