"""Slurm's commands, as text in and text out: what every version and site has, without accounting or JSON."""

import asyncio
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prorl_mq.errors import ProrlError
from slurm.tasks import FORMAT, WORKING, SlurmTask, read_tasks

# Of a job that this process may be in, and what filters or formats answers that are read here.
SCRUBBED: Final = ("SLURM_", "SRUN_", "SALLOC_", "SQUEUE_", "SCANCEL_", "SINFO_")
KEPT: Final = ("SLURM_CONF", "SLURM_CLUSTERS")
OF_SBATCH: Final = "SBATCH_"
# What such a variable sets, where that is not its name. To sbatch it is worth more than a line of the script.
SETS: Final = {
    "array-inx": "array", "timelimit": "time", "mem-per-node": "mem", "mem-per-cpu": "mem", "mem-per-gpu": "mem",
    "no-requeue": "requeue",
}  # fmt: skip
# Left out though the script does not set them: who waits for the job, where its output goes, and of a job around this.
NEVER: Final = re.compile(r"wait|error|input|output|array|dependency|test-only|(cpu|mem)-bind.*")
OPTION: Final = re.compile(r"^#SBATCH --?([A-Za-z][\w\-]*)", re.MULTILINE)
ALIVE: Final = WORKING | {"COMPLETING", "SUSPENDED", "STOPPED"}  # it has processes, or will have them again
FORGOTTEN: Final = "invalid job id"  # what squeue says of a job that ended some minutes ago
ANSWER_S: Final = 60.0
UNHEARD: Final = re.compile(r"contact slurm controller|timed out|missing socket|zero bytes", re.IGNORECASE)
SHORT: Final = {
    "a": "array",
    "J": "job-name",
    "o": "output",
    "e": "error",
    "t": "time",
    "p": "partition",
    "A": "account",
    "N": "nodes",
}
AT_ONCE: Final = 500  # tasks in one command line


class SlurmRefused(ProrlError):
    """Slurm did not do what it was asked; the message is its own."""


def environment(environ: Mapping[str, str], script: str = "") -> dict[str, str]:
    """Variables that a submitted job may inherit: nothing of the job that submits it, and of a user's own for sbatch,
    as SBATCH_ACCOUNT, those that say what the script leaves open.
    """
    said = {SETS.get(option, SHORT.get(option, option)) for option in OPTION.findall(script)}
    found = {}
    for name, value in environ.items():
        if name.startswith(OF_SBATCH):
            option = name.removeprefix(OF_SBATCH).lower().replace("_", "-")
            option = SETS.get(option, option)
            if option in said or NEVER.fullmatch(option):
                continue
        if name in KEPT or not name.startswith(SCRUBBED):
            found[name] = value
    return found


async def submit(script: str, *, test_only: bool = False) -> str:
    """The id of the job; with `test_only` what Slurm says of when and where it would run. Raises `SlurmRefused`."""
    argv = ["sbatch", *(["--test-only"] if test_only else ["--parsable"])]
    out, said = await _run(argv, script)
    return said.strip().removeprefix("sbatch: ") if test_only else out.strip().partition(";")[0]


async def tasks(names: Iterable[str]) -> list[SlurmTask]:
    """Every task of our own jobs with these names, ended ones too for as long as Slurm remembers them."""
    out, _ = await _run(["squeue", "-h", "-r", "-t", "all", "--me", "-n", ",".join(names), "-o", FORMAT])
    return read_tasks(out)


async def runs(job: str) -> bool:
    """True if a job of ours runs, stands still or just ends. Raises `SlurmRefused` where Slurm does not answer: then
    the job may run.
    """
    try:
        out, _ = await _run(["squeue", "-h", "-j", job, "-o", "%T"])
    except SlurmRefused as refused:
        if FORGOTTEN in str(refused).lower():
            return False
        raise
    return any(state in ALIVE for state in out.split())


async def nodes() -> dict[str, str]:
    """State of each node; a `*` at its end: it does not answer. One node alone may be answered from a cache."""
    out, _ = await _run(["sinfo", "-h", "-N", "-o", "%N|%T"])
    return dict(line.split("|", 1) for line in out.splitlines() if "|" in line)


async def drain(ids: Sequence[str]) -> None:
    """SIGTERM to the batch process itself, which is the worker: only so does Slurm not kill it right after."""
    await _scancel(["--signal=TERM", "--batch"], ids)


async def cancel(ids: Sequence[str]) -> None:
    """Ends tasks, running or not."""
    await _scancel([], ids)


async def kill(ids: Sequence[str]) -> None:
    """Ends tasks without the time that Slurm leaves them (KillWait): SIGKILL to the batch process, whose end is that
    of its workers and their sandboxes. Slurm calls them cancelled, or failed where it hears of the end first.
    """
    await _scancel(["--signal=KILL", "--batch"], ids)
    await _scancel([], ids)


async def _scancel(options: Sequence[str], ids: Sequence[str]) -> None:
    for start in range(0, len(ids), AT_ONCE):
        await _run(["scancel", *options, *ids[start : start + AT_ONCE]])


async def _run(argv: Sequence[str], stdin: str = "") -> tuple[str, str]:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(os.environ, stdin),
        )
    except FileNotFoundError:
        raise SlurmRefused(f"there is no command {argv[0]} here: run this on a node that has Slurm's client") from None
    try:
        async with asyncio.timeout(ANSWER_S):
            out, said = await process.communicate(stdin.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise SlurmRefused(f"{argv[0]} has not answered for {ANSWER_S:.0f} s: is slurmctld up?") from None
    text = said.decode(errors="replace")
    if process.returncode:
        what = re.sub(rf"^{argv[0]}: (error: )?", "", text.strip(), flags=re.MULTILINE)
        if UNHEARD.search(what):
            what += "\nslurmctld is busy or away: try again; a job that it took all the same is not submitted twice"
        raise SlurmRefused(f"{argv[0]}: {what or f'exit code {process.returncode}'}")
    return out.decode(errors="replace"), text
