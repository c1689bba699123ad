"""The fields of task.toml under the names and with the defaults that Harbor 0.24 gives them, schema 1.0 to 1.4.

Every field that Harbor reads is here, also those that tasks are refused for: `refusals` says which and why.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")
NetworkMode = Literal["no-network", "public", "allowlist"]


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """A table of task.toml."""


class Author(Fields, frozen=True, kw_only=True):
    """An author of a package."""

    name: str
    email: str | None = None


class Package(Fields, frozen=True, kw_only=True):
    """[task]: the task's name in a registry."""

    name: str
    version: str | None = None
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []


class SolutionTable(Fields, frozen=True, kw_only=True):
    """[solution]."""

    env: dict[str, str] = {}


class Agent(Fields, frozen=True, kw_only=True):
    """[agent]."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    timeout_sec: float | None = None
    user: str | int | None = None


class Healthcheck(Fields, frozen=True, kw_only=True):
    """[environment.healthcheck]: a command that is repeated until it succeeds."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class Environment(Fields, frozen=True, kw_only=True):
    """[environment] and [verifier.environment]."""

    network_mode: NetworkMode = "public"
    allowed_hosts: list[str] | None = None
    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: int | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None


class Collect(Fields, frozen=True, kw_only=True):
    """[[verifier.collect]]: a command that makes files of what runs, when the agent is done."""

    command: str
    service: str = "main"
    timeout_sec: float = 60.0
    user: str | int | None = None


class Verifier(Fields, frozen=True, kw_only=True):
    """[verifier]."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    timeout_sec: float = 600.0
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[Collect] = []

    @property
    def separate(self) -> bool:
        """True if the verifier gets the declared artifacts alone."""
        return self.environment_mode == "separate" or self.environment is not None


class Artifact(Fields, frozen=True, kw_only=True):
    """An entry of `artifacts`; text stands for one with that source."""

    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None


class TaskToml(Fields, frozen=True, kw_only=True):
    """The whole file."""

    schema_version: str = "1.4"
    task: Package | None = None
    metadata: dict[str, Any] = {}
    verifier: Verifier = Verifier()
    agent: Agent = Agent()
    environment: Environment = Environment()
    solution: SolutionTable = SolutionTable()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[dict[str, Any]] | None = None
    artifacts: list[str | Artifact] = []

    def all_artifacts(self) -> list[Artifact]:
        """As structs."""
        return [Artifact(source=each) if isinstance(each, str) else each for each in self.artifacts]


_TABLES: Mapping[str, type[Fields]] = {
    "": TaskToml, "task": Package, "verifier": Verifier, "agent": Agent, "environment": Environment,
    "solution": SolutionTable, "environment.healthcheck": Healthcheck, "verifier.environment": Environment,
    "verifier.environment.healthcheck": Healthcheck,
}  # fmt: skip
_LISTS: Mapping[str, type[Fields]] = {"artifacts": Artifact, "verifier.collect": Collect}
_SIZES = {"K": 1 / 1024, "M": 1, "G": 1024}


def unknown(data: Mapping[str, Any]) -> Iterator[str]:
    """The paths of fields that no version of the format has."""
    for path, kind in _TABLES.items():
        table = _at(data, path)
        if isinstance(table, Mapping):
            yield from (f"{path}.{name}".lstrip(".") for name in table.keys() - set(kind.__struct_fields__))
    for path, kind in _LISTS.items():
        rows: Any = _at(data, path)
        for number, row in enumerate(rows if isinstance(rows, list) else list[Any]()):
            if isinstance(row, Mapping):
                yield from (f"{path}[{number}].{name}" for name in row.keys() - set(kind.__struct_fields__))


def _at(data: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def modern(data: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file in today's spelling: `version`, `memory`, `storage` and `allow_internet` are old ones.

    Raises `ValueError` for a size that is none, or that two spellings tell differently.
    """
    told = dict(data)
    if "version" in told:
        told.setdefault("schema_version", told.pop("version"))
    if isinstance(told.get("environment"), Mapping):
        told["environment"] = _modern_environment(told["environment"], "environment")
    verifier = told.get("verifier")
    if isinstance(verifier, Mapping) and isinstance(verifier.get("environment"), Mapping):
        inner = _modern_environment(verifier["environment"], "verifier.environment")
        told["verifier"] = {**verifier, "environment": inner}
    return told


def _modern_environment(table: Mapping[str, Any], path: str) -> dict[str, Any]:
    told = dict(table)
    for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
        if old in told:
            size = _megabytes(told.pop(old), f"{path}.{old}")
            if told.setdefault(new, size) != size:
                raise ValueError(f"{path}.{old} and {path}.{new} tell different sizes")
    allowed = told.pop("allow_internet", None)
    if allowed is not None and "network_mode" not in told and told.get("allowed_hosts") is None:
        told["network_mode"] = "public" if allowed else "no-network"
    if isinstance(told.get("os"), str):
        told["os"] = told["os"].lower()
    return told


def _megabytes(size: Any, path: str) -> int:
    text = str(size).strip().upper()
    try:
        return int(float(text[:-1]) * _SIZES[text[-1:]])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{path} = {size!r} is no size such as 512M or 2G") from None
