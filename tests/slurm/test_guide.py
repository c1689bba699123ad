"""The guide names every word of a spec, and every command."""

import re
from pathlib import Path

import msgspec
import pytest

from slurm.__main__ import SUB_COMMANDS
from slurm.spec import ApiJob, Array, AtSignal, Backend, Deployment, Job, RedisJob, Scaling, TaskKind

GUIDE = (Path(__file__).parents[2] / "docs" / "howto" / "slurm.md").read_text()


@pytest.mark.parametrize("kind", [ApiJob, Array, Backend, Deployment, Job, RedisJob, Scaling])
def test_every_word_of_a_spec_stands_in_the_guide(kind: type[msgspec.Struct]) -> None:
    said = set(re.findall(r"`([a-z_]+)(?:\.NAME)?`", GUIDE)) | set(re.findall(r"^\[(\w+)", GUIDE, re.MULTILINE))
    assert {field.name for field in msgspec.structs.fields(kind)} - said == set()


def test_every_command_and_choice_stands_in_the_guide() -> None:
    assert all(f"prorl-slurm {command}" in GUIDE for command in SUB_COMMANDS)
    assert all(f"`{word}`" in GUIDE for word in [*TaskKind, *AtSignal])
