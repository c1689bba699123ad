"""Rows of software engineering data sets: SWE-bench and its relatives, under the names that they have there."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

WORKDIR = "/testbed"
R2E_TESTS = "/r2e_tests"  # where images of R2E-Gym keep the hidden tests
Kind = Literal["swebench", "swebench_multimodal", "r2egym", "swesmith"]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The open part of a row: what INIT and RUN work with."""

    instance_id: str = ""
    repo: str = ""
    repo_name: str = ""  # R2E-Gym's word
    base_commit: str = ""
    problem_statement: str = ""
    version: str = ""
    data_kind: Kind | None = None
    docker_image: str | None = None  # R2E-Gym
    image_name: str | None = None  # SWE-smith
    image: str | None = None  # SWE-bench's newer rows
    image_assets: Any = None  # SWE-bench multimodal
    workdir: str = WORKDIR
    agent: str | None = None  # a harness that runs inside the sandbox, in place of the loop of ours
    tools: bool | Sequence[str] = True
    system: str | None = None  # replaces the family's own system message
    allow_tests: bool = False  # whether changes of tests are part of the patch

    @property
    def kind(self) -> Kind:
        """As the row says, or as its fields show."""
        if self.data_kind is not None:
            return self.data_kind
        if self.docker_image:
            return "r2egym"
        if self.image_assets:
            return "swebench_multimodal"
        return "swesmith" if self.image_name and not self.base_commit else "swebench"

    @property
    def project(self) -> str:
        return self.repo or self.repo_name

    @property
    def writable(self) -> Sequence[str]:
        """Directories of the image that are copied; hidden tests among them, so that they can be removed."""
        return (self.workdir, R2E_TESTS) if self.kind == "r2egym" else (self.workdir,)


class Hidden(msgspec.Struct, frozen=True, kw_only=True):
    """The sealed part of a row: EVAL's alone."""

    test_patch: str = ""
    fail_to_pass: Sequence[str] = ()
    pass_to_pass: Sequence[str] = ()
    expected: Mapping[str, str] = {}  # R2E-Gym: a status for each test
    log_parser: str = ""
    eval_script: str = ""


def task_of(payload: Mapping[str, Any]) -> Task:
    return msgspec.convert(dict(payload), Task)


def hidden_of(sealed: Mapping[str, Any]) -> Hidden:
    """Lists may be JSON text, as the published files have them."""
    return Hidden(
        test_patch=str(sealed.get("test_patch") or ""),
        fail_to_pass=_listed(sealed.get("FAIL_TO_PASS")),
        pass_to_pass=_listed(sealed.get("PASS_TO_PASS")),
        expected=_mapped(sealed.get("expected_output_json")),
        log_parser=str(sealed.get("log_parser") or ""),
        eval_script=str(sealed.get("eval_script") or ""),
    )


def _listed(value: Any) -> list[str]:
    found = json.loads(value) if isinstance(value, str) and value.strip() else value
    return msgspec.convert(found or [], list[str])


def _mapped(value: Any) -> dict[str, str]:
    found = json.loads(value) if isinstance(value, str) and value.strip() else value
    return msgspec.convert(found or {}, dict[str, str])
