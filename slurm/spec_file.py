"""Reading a deployment's TOML file: site profile, defaults, and every fault with the name that was meant."""

import os
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.strict import Misfit, convert
from slurm.commands import SHORT
from slurm.spec import WATCH, Array, Backend, Deployment, Job
from slurm.tasks import limit_s

LISTS: Final = ("setup", "sbatch")  # those of the profile, the defaults and the job add up
OURS: Final = {
    "array": "count and throttle", "job-name": "the deployment's name", "output": "shared", "error": "shared",
    "signal": "warn_s and at_signal", "time": "time", "partition": "partition", "account": "account",
    "cpus-per-task": "cpus", "mem": "memory", "gres": "gres", "ntasks": "processes", "open-mode": "nothing",
    "nodes": "nodes of a backend", "requeue": "at_signal", "no-requeue": "at_signal",
}  # fmt: skip


def read(path: Path, profile: Path | None = None) -> Deployment:
    """Raises `ConfigurationError` with every fault. `profile` takes the place of the one that the file names."""
    plain = _toml(path)
    named = plain.pop("profile", None)
    if profile is None and named is not None:
        profile = path.parent / str(named)
    if profile is not None:
        plain = _merged(_toml(profile), plain)
    base = path.absolute().parent
    return deployment(plain, source=str(path), base=base)


def deployment(plain: Mapping[str, Any], *, source: str = "the spec", base: Path | None = None) -> Deployment:
    """Makes a deployment of plain tables. A relative `shared` or `python` starts at `base`."""
    tables = dict(plain)
    defaults = tables.pop("defaults", {})
    faults = _faults_of_defaults(defaults)
    for section in ("redis", "api", WATCH):
        if isinstance(tables.get(section), dict):
            tables[section] = _merged(defaults, tables[section])
    for section in ("backends", "arrays"):
        if isinstance(tables.get(section), dict):
            tables[section] = {
                name: _merged(defaults, table) if isinstance(table, dict) else table
                for name, table in tables[section].items()
            }
    found: Deployment | None = None
    try:
        found = convert(tables, Deployment)
        faults += _contradictions(found)
    except Misfit as misfit:
        faults.append(str(misfit))
    if faults or found is None:
        raise ConfigurationError("\n".join(f"{source}: {fault}" for fault in dict.fromkeys(faults)))
    return found if base is None else _placed(found, base)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from None


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `under`; tables are merged, `setup` and `sbatch` are joined, anything else is replaced."""
    made = dict(under)
    for name, value in over.items():
        below = made.get(name)
        if isinstance(below, dict) and isinstance(value, dict):
            made[name] = _merged(below, value)
        elif name in LISTS and isinstance(below, list) and isinstance(value, list):
            made[name] = [*below, *value]
        else:
            made[name] = value
    return made


def _faults_of_defaults(defaults: Any) -> list[str]:
    try:
        convert(defaults, Job)
    except Misfit as misfit:
        return [str(misfit).replace("at $", "at $.defaults", 1)]
    return []


def _contradictions(found: Deployment) -> list[str]:
    """Contradictions between words each of which is right."""
    faults = []
    jobs: dict[str, Job] = {f"arrays.{name}": array for name, array in found.arrays.items()}
    jobs |= {f"backends.{name}": backend for name, backend in found.backends.items()}
    single = {"redis": found.redis, "api": found.api, WATCH: found.watch}
    jobs |= {name: job for name, job in single.items() if job is not None}
    for name, job in jobs.items():
        faults += [f"{fault} at $.{name}.sbatch" for fault in map(_claimed, job.sbatch) if fault]
    for name, array in found.arrays.items():
        faults += [f"{fault} at $.arrays.{name}" for fault in _faults_of_array(array)]
    for name, backend in found.backends.items():
        faults += [f"{fault} at $.backends.{name}" for fault in _faults_of_backend(backend)]
    if set(found.arrays) & (taken := {*single, *found.backends}):
        both = sorted(set(found.arrays) & taken)
        faults.append(f"{both[0]!r} names two jobs at $.arrays: rename the array")
    faults += [
        f"{name!r} is the name of the deployment's own job at $.backends: rename the backend"
        for name in sorted(set(found.backends) & set(single))
    ]
    if found.backends and found.redis is None:
        faults.append("backends need to know where Redis is: add a table [redis]")
    return faults


def _faults_of_array(array: Array) -> list[str]:
    faults = []
    if array.warn_s >= limit_s(array.time):
        faults.append(f"warn_s is {array.warn_s}, which is not less than the time {array.time}")
    if array.least > (array.most or array.count):
        faults.append(f"least is {array.least}, more than most, {array.most or array.count}")
    return faults


def _faults_of_backend(backend: Backend) -> list[str]:
    faults = []
    if backend.others and backend.nodes == 1:
        faults.append("others is the command of further nodes, and nodes is 1")
    if backend.image and backend.nodes > 1:
        faults.append("an image has no srun, which several nodes need: begin the command with `apptainer exec IMAGE`")
    return faults


def _claimed(option: str) -> str | None:
    """Why an option may not stand in `sbatch`."""
    match = re.match(r"--?([A-Za-z][\w\-]*)", option)
    if match is None:
        return f"{option!r} is not an option of sbatch: options begin with a dash"
    name = SHORT.get(match[1], match[1])
    return f"{option!r} is set by {OURS[name]!r}: write it there" if name in OURS else None


def _placed(found: Deployment, base: Path) -> Deployment:
    """Paths made absolute: a job starts somewhere else than the reader of the file."""
    shared = os.path.normpath(base / Path(found.shared).expanduser())
    python = found.python or sys.executable
    if "/" in python and not python.startswith("$"):
        python = os.path.normpath(base / python)
    return msgspec.structs.replace(found, shared=shared, python=python)
