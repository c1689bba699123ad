"""Reads a directory of a task in Harbor's format into a row. Whatever it asks for that cannot be had is named."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec

from workers.handlers.harbor import dockerfile, files, network, recipe
from workers.handlers.harbor.fields import Environment, TaskToml, modern, unknown
from workers.handlers.harbor.refusals import COMPOSE, refused, unwritable
from workers.handlers.harbor.row import CarriedPath, HiddenTests, Solved, TaskRow

LOGS = "/logs"
OWN = "prorl_mq"  # the table of [metadata] that is ours: Harbor takes any there
NAME_CHARS = 256  # of a task_id
PARTS = ("task.toml", "instruction.md", "environment", "environment/Dockerfile", "tests", "solution")
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)


class BadTask(ValueError):
    """A directory that is no task, or one that cannot be run here. The message lists everything."""

    def __init__(self, directory: Path, problems: list[str]) -> None:
        told = f"{directory}: " + "\n  ".join(problems)
        super().__init__(told.encode(errors="backslashreplace").decode())  # a name may be no UTF-8
        self.problems = problems


class HarborTask(NamedTuple):
    """A task as it was read."""

    name: str
    config: TaskToml
    row: TaskRow
    hidden: HiddenTests
    solution: Solved | None
    egress: list[str]


def read_task(directory: Path, environment: Mapping[str, str] = os.environ) -> HarborTask:
    """`environment` fills the templates `${NAME}` of variables. Blocks. Raises `BadTask`."""
    problems = list(_leading_out(directory))
    config = None if problems else _config(directory, problems)
    if config is None:
        raise BadTask(directory, problems)
    problems += _directory_problems(directory, config)
    if problems:
        raise BadTask(directory, problems)
    try:
        return _read(directory, config, environment)
    except (ValueError, OSError, RuntimeError) as error:  # the last: links in a circle
        raise BadTask(directory, [str(error)]) from error


def _leading_out(directory: Path) -> Iterator[str]:
    """A link to a file of this machine would have that shown to the agent."""
    root = directory.resolve()
    for name in PARTS:
        try:
            inside = (directory / name).resolve().is_relative_to(root)
        except (OSError, RuntimeError):
            inside = False
        if not inside:
            yield f"{name} leads out of the task"


def _config(directory: Path, problems: list[str]) -> TaskToml | None:
    """None where nothing can be said but that."""
    try:
        data = modern(tomllib.loads(files.text_of(directory / "task.toml")))
        problems += [f"unknown field {name}" for name in sorted(unknown(data))]
        config = msgspec.convert(data, TaskToml)
    except FileNotFoundError:
        problems.append("there is no task.toml in it")
    except (OSError, ValueError, RecursionError) as error:  # also of TOML, of an encoding, of a type
        problems.append(f"task.toml cannot be read: {error}")
    else:
        problems += refused(config, data)
        return config
    return None


def _directory_problems(directory: Path, config: TaskToml) -> Iterator[str]:
    if not (directory / "instruction.md").is_file():
        yield "there is no instruction.md in it"
    if (directory / "trajectory.json").exists():
        yield "trajectory.json: a history before the task is not supported"
    for name in COMPOSE:
        for place in ("environment", "tests"):
            if (directory / place / name).exists():
                yield (
                    f"{place}/{name}: services beside the main container are not supported; start what they do in the "
                    "image, or run this task with Harbor itself"
                )
    if (directory / "tests" / "Dockerfile").exists():
        yield "tests/Dockerfile: build it, and give [verifier.environment].docker_image"
    bundled = config.verifier.environment is not None and config.verifier.environment.docker_image
    if not bundled and not (directory / "tests" / "test.sh").is_file():
        yield "there is no tests/test.sh in it"


def _read(directory: Path, config: TaskToml, environment: Mapping[str, str]) -> HarborTask:
    table, verifier = config.environment, config.verifier
    own = directory / "environment"
    built = dockerfile.read(files.text_of(own / "Dockerfile")) if _builds(own, table) else None
    image = f"docker://{table.docker_image}" if table.docker_image else None
    if built is not None and image is None:
        image = f"{recipe.BUILT}{recipe.digest(own)}"
    if image is None:
        raise ValueError("there is neither environment/Dockerfile nor [environment].docker_image")
    workdir = table.workdir or (built.workdir if built else None) or _told_workdir(own)
    if workdir is None:
        raise ValueError("nothing names the working directory: write [environment].workdir, or WORKDIR in a Dockerfile")
    writable, empty = _places(config, workdir)
    row = TaskRow(
        instruction=_instruction(directory),
        image=image,
        workdir=workdir,
        environment={**(built.environment if built else {}), **_filled(table.env, environment, "environment.env")},
        writable=writable,
        empty=empty,
        files=files.packed(own, directory) if own.is_dir() and not (own / "Dockerfile").exists() else [],
        memory_mb=table.memory_mb,
        storage_mb=table.storage_mb,
        agent_timeout_s=config.agent.timeout_sec,
        healthcheck=table.healthcheck,
        collect=verifier.collect,
        carried=[CarriedPath(path=each.source, exclude=each.exclude) for each in config.all_artifacts()],
        separate=verifier.separate,
    )
    tests, solution = directory / "tests", directory / "solution"
    other = verifier.environment
    hidden = HiddenTests(
        tests=[] if other and other.docker_image else files.packed(tests, directory),
        timeout_s=verifier.timeout_sec,
        environment=_filled(verifier.env, environment, "verifier.env"),
        image=f"docker://{other.docker_image}" if other and other.docker_image else None,
        workdir=other.workdir if other else None,
        image_environment=_filled(other.env, environment, "verifier.environment.env") if other else {},
        memory_mb=other.memory_mb if other else None,
        storage_mb=other.storage_mb if other else None,
        healthcheck=other.healthcheck if other else None,
    )
    solved = None
    if (solution / "solve.sh").is_file():
        env = _filled(config.solution.env, environment, "solution.env")
        solved = Solved(files=files.packed(solution, directory), environment=env)
    name = config.task.name if config.task else directory.resolve().name
    if not name.isprintable() or len(name) > NAME_CHARS:
        raise ValueError(f"its name {name[:40]!a} must be printable, and have {NAME_CHARS} characters at most")
    return HarborTask(name, config, row, hidden, solved, network.agents_hosts(config))


def _builds(own: Path, table: Environment) -> bool:
    return not table.docker_image and (own / "Dockerfile").is_file()


def _told_workdir(own: Path) -> str | None:
    """The directory that the Dockerfile of a published image names, even if we could not build it."""
    if not (own / "Dockerfile").is_file():
        return None
    try:
        return dockerfile.read(files.text_of(own / "Dockerfile")).workdir
    except dockerfile.Unbuildable:
        return None


def _places(config: TaskToml, workdir: str) -> tuple[list[str], list[str]]:
    """Directories that are copied from the image to be written to, and those that begin empty."""
    own = config.metadata.get(OWN, {})
    told = own.get("writable", []) if isinstance(own, dict) else []
    if not isinstance(own, dict) or own.keys() - {"writable"} or not _are_texts(told):
        raise ValueError(f"[metadata.{OWN}] may have `writable`, a list of directories, and nothing else")
    asked = [workdir, *(each.rstrip("/") for each in told)]
    writable = _outermost(asked)
    artifacts = [PurePosixPath(each.source) for each in config.all_artifacts()]
    places = [str(path if path.parent == PurePosixPath("/") else path.parent) for path in artifacts]
    empty = [place for place in _outermost([LOGS, *places]) if not _within(place, writable)]
    for place in (*asked, *empty):
        if (problem := unwritable(place)) is not None:
            raise ValueError(problem)
        if _within(place, ("/tests", "/solution")) or (place != LOGS and _within(place, (LOGS,))):
            raise ValueError(f"{place} is a place of Harbor's own, and cannot be the agent's")
    return writable, empty


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _outermost(places: list[str]) -> list[str]:
    return sorted({place for place in places if not _within(place, [other for other in places if other != place])})


def _within(place: str, others: Any) -> bool:
    return any(place == other or place.startswith(f"{other}/") for other in others)


def _instruction(directory: Path) -> str:
    """Without the canary lines in front, which mark a benchmark and are not meant for agents."""
    lines = files.text_of(directory / "instruction.md").split("\n")
    at = 0
    while at < len(lines) and _CANARY.fullmatch(lines[at].strip()):
        at += 1
    while at < len(lines) and not lines[at].strip():
        at += 1
    return "\n".join(lines[at:])


def _filled(values: Mapping[str, str], environment: Mapping[str, str], path: str) -> dict[str, str]:
    """As Harbor fills them: a value that is `${NAME}` or `${NAME:-default}` as a whole."""
    filled: dict[str, str] = {}
    for name, value in values.items():
        found = _TEMPLATE.fullmatch(value)
        if found is None:
            filled[name] = value
        elif found[1] in environment:
            filled[name] = environment[found[1]]
        elif found[2] is not None:
            filled[name] = found[2]
        else:
            raise ValueError(f"{path}.{name} wants the variable {found[1]}, which is not set here: export it")
    return filled
