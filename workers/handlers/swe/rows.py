"""Rows of software engineering data sets: SWE-bench and its relatives, under the names that they have there.

NeMo Gym packs such a row as JSON text into `instance_dict`, beside a few of its columns. That text is sealed whole, for
it tells the fix: INIT and RUN work with the columns beside it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from prorl_mq.schema.task_schema import told_of
from workers.handlers.rows import AgentRow, BadRow

WORKDIR = "/testbed"
R2E_TESTS = "/r2e_tests"  # where images of R2E-Gym keep the hidden tests
Kind = Literal["swebench", "r2egym", "swesmith"]
_OWN_SCRIPTS = ("run_script.sh", "parsing_script.py")  # of rows that bring what runs and reads their tests
_FORGED = (
    f"its tests are run and read by scripts that the row brings ({', '.join(_OWN_SCRIPTS)}); a patch could forge what "
    "they print, so such rows are not scored here"
)
_MULTIMODAL = (
    "it is a row of SWE-bench Multimodal, whose tests are JavaScript's and compare pictures; only Python's can be run "
    "here: leave such rows out"
)
_PROGRESS = re.compile(r"^\[ *\d+%\]$")  # of a log's lines of progress, which two rows of pytest list as tests
REFUSED = {**dict.fromkeys(_OWN_SCRIPTS, _FORGED), "image_assets": _MULTIMODAL}  # columns that say so, and why
_WITH_OWN_SCRIPTS = ("nv-internal", "swe-bench_pro", "swe-bench-ext")


class SweTask(AgentRow, frozen=True, kw_only=True):
    """The open part of a row: what INIT and RUN work with."""

    instance_id: str = ""
    repo: str = ""
    repo_name: str = ""  # R2E-Gym's word
    base_commit: str = ""
    problem_statement: str = ""
    version: str = ""
    data_kind: Kind | None = None
    dataset_name: str = ""  # NeMo Gym
    docker_image: str | None = None  # R2E-Gym
    image_name: str | None = None  # SWE-smith
    image: str | None = None  # SWE-bench's newer rows
    workdir: str = WORKDIR
    tools: bool | Sequence[str] = True
    system: str | None = None  # replaces the family's own system message
    allow_tests: bool = False  # whether changes of tests are part of the patch

    @property
    def kind(self) -> Kind:
        """As the row says, or as its fields show."""
        if self.data_kind is not None:
            return self.data_kind
        if self.docker_image or "r2e-gym" in self.dataset_name.lower():
            return "r2egym"
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

    patch: str = ""  # the fix; SWE-smith's puts the bug in
    test_patch: str = ""
    fail_to_pass: Sequence[str] = ()
    pass_to_pass: Sequence[str] = ()
    expected: Mapping[str, str] = {}  # R2E-Gym: a status for each test
    log_parser: str = ""
    eval_script: str = ""


def task_of(payload: Mapping[str, Any]) -> SweTask:
    """Raises `BadRow` for what cannot be run here."""
    if reason := _refusal(payload):
        raise BadRow(f"{payload.get('instance_id')}: {reason}")
    try:
        return msgspec.convert(dict(payload), SweTask)
    except msgspec.ValidationError as error:
        raise BadRow(f"{payload.get('instance_id')}: the row does not fit: {error}") from error


def _refusal(payload: Mapping[str, Any]) -> str | None:
    said = next((reason for name, reason in REFUSED.items() if told_of(payload.get(name))), None)
    if said is not None:
        return said
    if payload.get("data_kind") == "swebench_multimodal":
        return _MULTIMODAL
    name = str(payload.get("dataset_name") or "").lower()
    return _FORGED if any(each in name for each in _WITH_OWN_SCRIPTS) else None


def whole(payload: Mapping[str, Any], sealed: Mapping[str, Any]) -> dict[str, Any]:
    """All columns of a row, for EVAL: those of an `instance_dict`, and what stands beside it."""
    packed = sealed.get("instance_dict")
    try:
        inner = msgspec.convert(json.loads(packed) if isinstance(packed, str) else packed or {}, dict[str, Any])
    except ValueError as error:
        raise BadRow(f"{payload.get('instance_id')}: its instance_dict is no JSON object: {error}") from error
    return {**{name: value for name, value in inner.items() if value is not None}, **payload, **sealed}


def hidden_of(sealed: Mapping[str, Any]) -> Hidden:
    """Lists may be JSON text, as the published files have them. Raises `BadRow` for what is no list."""
    try:
        return _hidden(sealed)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"FAIL_TO_PASS, PASS_TO_PASS or expected_output_json cannot be read: {error}") from error


def _hidden(sealed: Mapping[str, Any]) -> Hidden:
    return Hidden(
        patch=str(sealed.get("patch") or ""),
        test_patch=str(sealed.get("test_patch") or ""),
        fail_to_pass=_listed(sealed.get("FAIL_TO_PASS")),
        pass_to_pass=[name for name in _listed(sealed.get("PASS_TO_PASS")) if not _PROGRESS.match(name)],
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
