"""The network that a task asks for: named hosts of its agent's are the task's egress, everything else is refused.

As in Harbor, a phase without a policy of its own has that of its environment. RUN alone has egress here, so hosts of a
verifier cannot be had.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from prorl_mq.rules import egress
from workers.handlers.harbor.fields import Agent, Environment, TaskToml, Verifier

Table = Environment | Agent | Verifier
MOST: Final = 64  # of a task
_ALLOWED: Final = "allowlist"
_LISTED: Final = (
    'sandboxes have no network but hosts that are named: write network_mode = "allowlist" with allowed_hosts for the '
    'agent, or "no-network" if the task works without'
)
_NAMES: Final = "only exact names can be reached, over https: name each host"


def agents_hosts(task: TaskToml) -> list[str]:
    """The hosts that the agent may reach, as a task lists them."""
    return list(dict.fromkeys(_name(each) for each in _policy(task.agent, task.environment).allowed_hosts or ()))


def refused(task: TaskToml, given: Mapping[str, Any]) -> Iterator[str]:
    """`given` is the file's own content: a mode that it leaves out was not asked for."""
    verifiers = task.verifier.environment
    tables: dict[str, Table | None] = {
        "environment": task.environment, "agent": task.agent, "verifier": task.verifier,
        "verifier.environment": verifiers,
    }  # fmt: skip
    for path, table in tables.items():
        if table is None:
            continue
        told = given
        for name in path.split("."):
            told = told.get(name, {})
        yield from _wrong(path, table, told)
    inherited = task.environment if verifiers is None else verifiers
    if hosts := _policy(task.verifier, inherited).allowed_hosts:
        yield (
            f"the verifier may reach {', '.join(hosts)}, and EVAL has no network: write network_mode = "
            '"no-network" in [verifier] if test.sh works without, and put what it fetches into the image'
        )
    if len(agents_hosts(task)) > MOST:
        yield f"allowed_hosts: a task lists at most {MOST} hosts"


def _wrong(path: str, table: Table, given: Mapping[str, Any]) -> Iterator[str]:
    mode, hosts = table.network_mode, table.allowed_hosts
    if "network_mode" in given and mode not in {None, _ALLOWED, "no-network"}:
        yield f"{path}.network_mode = {mode!r}: {_LISTED}"
    if mode != _ALLOWED and (hosts or (mode is None and hosts is not None)):
        yield f'{path}.allowed_hosts needs {path}.network_mode = "{_ALLOWED}"'
    for each in hosts or ():
        try:
            egress.target(f"{_name(each)}:{egress.PORT}")  # of which an entry has none
        except ValueError:
            yield f"{path}.allowed_hosts: {each!r}: {_NAMES}"


def _policy(phase: Agent | Verifier, environment: Environment) -> Table:
    return environment if phase.network_mode is None else phase


def _name(host: str) -> str:
    return host.strip().lower().rstrip(".")
