"""The command line: sub-commands and their options. A wrong name is answered with the nearest valid one."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from prorl_mq import __version__
from prorl_mq.cli.values import count, pause_seconds, port, quota, share, whole
from prorl_mq.local_token import URL
from prorl_mq.process.arguments import Parser, positive, unknown
from prorl_mq.schema.status import PAUSE_MS
from prorl_mq.servers import DATABASE
from prorl_mq.settings import KEEP, NAMESPACE, OPEN, REDIS, STATE_DIR, Setting, SubCommand, add_commands, add_version

FAMILIES = (
    "code", "gem", "gym_entries", "human_eval", "if_eval", "math", "reasoning_gym", "reward_service", "stem", "swe",
    "textarena", "tool_call", "verifiers",
)  # fmt: skip
KINDS = ("job", "group", "batch", "run")
MODULES: Final = {
    "job": "looking", "cancel": "looking", "pause": "looking", "resume": "looking", "fork": "looking",
    "status": "overview", "advise": "overview", "run": "shares", "tenant": "shares", "move": "moving",
    "fsck": "local.fsck", "images": "local.images", "router": "local.router", "upgrade": "local.upgrade",
    "archive": "kept.archive", "record": "kept.record", "view": "kept.view", "replay": "samples.replay",
    "regrade": "samples.regrade", "evaluate": "evaluation.command", "demo": "demo.command",
    "install-tools": "installing.command",
}  # fmt: skip


def arguments() -> tuple[Parser, dict[str, Parser]]:
    """The whole command line, and each command's own by its name."""
    parser = Parser(prog="prorl-mq", description="Rollouts of LLM agents for reinforcement learning, on Redis streams.")
    add_version(parser, f"prorl-mq {__version__}")
    return parser, add_commands(parser, COMMANDS, os.environ)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Exits with code 2 and one line on standard error if the command line is wrong."""
    parser, made = arguments()
    given, extra = parser.parse_known_args(argv)
    command = made[given.command]
    if extra and not any(text.startswith("-") for text in extra):
        # argparse takes an optional positional argument as left out where an option stands before it
        behind = argv[argv.index(given.command) + 1 :]
        given, extra = command.parse_known_intermixed_args(behind, argparse.Namespace(command=given.command))
    if extra:
        options = [option for action in command._actions for option in action.option_strings]  # noqa: SLF001
        name = extra[0].partition("=")[0]
        command.error(
            unknown("option", name, options) if name.startswith("-") else f"{extra[0]!r} is an unexpected argument"
        )
    return given


def module_of(given: argparse.Namespace) -> str:
    """The module of `prorl_mq.cli` that runs a command."""
    command: str = given.command
    return "demo.dapo" if command == "demo" and given.dapo else MODULES.get(command, command)


STORE = (replace(REDIS, help="URL of a Redis server; else that of `up`"), NAMESPACE, STATE_DIR)
ADDRESS = Setting("--url", f"URL of the API, or of its Redis; else that of `up`, or {URL}", variable="PRORL_URL")
TOKEN = Setting("--token", "bearer token for the API; others on this machine can read it here, not in the variable",
                metavar="TEXT", variable="PRORL_TOKEN")  # fmt: skip
SERVICE = (ADDRESS, TOKEN)
SANDBOX = Setting("--sandbox", "auto, untrusted, apptainer, bubblewrap, local, remote or none", default="auto",
                  metavar="KIND")  # fmt: skip
TOKENIZER = Setting("--tokenizer", "directory of the policy's tokenizer", type=Path, metavar="DIR")
BACKEND = Setting("--backend", "URL of an inference server of the policy", metavar="URL", again=True)
SAMPLES = Setting("--n", "samples of each task", type=positive, default=1)
JOB_ID = Setting("id", "the job, as run:group:index")
PORT = Setting("--port", "port of the API, 0 takes a free one", type=port, default=8080)
DATA_SOURCE = Setting("--data-source", "for lines that do not name one", metavar="NAME")
SAMPLING = Setting("--sampling", "as temperature=0.7", nargs="+", again=True, metavar="K=V")
OUT = Setting("--out", type=Path, metavar="FILE")
FORMAT = Setting("--format", "format of the output; else by the name: .jsonl, .parquet, any other datasets",
                 choices=("jsonl", "parquet", "datasets"))  # fmt: skip
JSON = Setting("--json", "print it as JSON", alone=True)
WEIGHT = Setting("--weight", "share relative to the tenant's other runs", type=float, metavar="W", default=KEEP)
MAX_BYTES = Setting("--max-unacked-bytes", "size of results above which no group begins; or none", type=quota,
                    metavar="N", unit="bytes", default=KEEP)  # fmt: skip
MAX_JOBS = Setting("--max-jobs", "jobs in flight at most, or none", type=quota, metavar="N", default=KEEP)

UP = (
    (
        replace(REDIS, help="URL of a running Redis server; else one is started", variable=None),
        Setting("--redis-server", "which server to start; else the one that is there",
                choices=("installed", "embedded")),
    ),
    Setting("--replicas", "replicas of the server that is started: 2 or more, with Sentinels and confirmed answers",
            type=count, default=0, metavar="N"),
    STATE_DIR,
    Setting("--init", "INIT worker processes", type=count, default=1, metavar="N"),
    Setting("--run", "RUN worker processes", type=count, default=1, metavar="N"),
    Setting("--eval", "EVAL worker processes", type=count, default=1, metavar="N"),
    Setting("--slots", "jobs at a time in each", type=positive, default=8, metavar="N"),
    PORT,
    Setting("--host", "address that the API listens on; beyond loopback it needs --tokens", default="127.0.0.1"),
    Setting("--tokens", "TOML file with the token of each tenant", type=Path, metavar="FILE", variable="PRORL_TOKENS"),
    OPEN,
    Setting("--compat-port", "port of ProRL Agent's routes, 0 takes a free one; else 8006, with --port 0 a free one",
            type=port, metavar="PORT"),
    NAMESPACE,
    SANDBOX,
    TOKENIZER,
    BACKEND,
    Setting("--local-backend", "directory of a model, which vLLM serves on this machine", type=Path,
            metavar="MODEL_DIR"),
    Setting("--no-dashboard", "do not start rq-dashboard", alone=True),
    Setting("--grace", "how long running jobs may continue after Ctrl-C or SIGTERM", type=float, default=30.0, unit="s",
            metavar="S"),
)  # fmt: skip
DEMO = (
    STATE_DIR,
    replace(BACKEND, help="URL of an inference server; else vLLM is started", again=False, variable="BACKEND"),
    replace(TOKENIZER, help="directory of the tokenizer of the backend's model; else the demo model's"),
    SANDBOX,
    Setting("--dapo", "fill a DAPO batch; run again, it continues where it was killed", alone=True),
    replace(SAMPLES, default=4),
    Setting("--family", "a few tasks of this family; they need not be solved", choices=FAMILIES),
    Setting("--tasks", "file of other tasks than the examples", type=Path, metavar="FILE"),
    Setting("--once", "end when the table is shown; else, on a terminal, it runs until Ctrl-C", alone=True),
    replace(OUT, help="file of the trajectories", default=Path("out.jsonl")),
)
SUBMIT = (
    Setting("tasks", 'file with one line per task: {"task_id", "data_source", "payload"}, or a group request',
            type=Path),
    replace(OUT, help="file of one JSON line per sample; else TASKS' name with .out.jsonl"),
    SAMPLES,
    Setting("--run", "the training run; else the name of the tasks' file", metavar="NAME"),
    Setting("--batch", "what makes a repeat the same batch; else it is derived from the content", metavar="NAME"),
    DATA_SOURCE,
    Setting("--agent", "a harness that acts in the sandbox, in place of the built-in loop", metavar="NAME"),
    SAMPLING,
    Setting("--limits", "of each sample, as run_ms=60000", nargs="+", again=True, metavar="K=V"),
    Setting("--dapo", "fill a DAPO batch, as target_groups=32", nargs="+", again=True, metavar="K=V"),
    *SERVICE,
)  # fmt: skip
EVALUATE = (
    Setting("suite", "TOML file that names sets of rows, how to sample them and what counts as solved", type=Path,
            nargs="?"),
    Setting("--pool", "pool of the policy that is evaluated", default="policy", metavar="NAME"),
    replace(SAMPLES, help="samples of each task; else as the suite says, or 1", default=None),
    replace(OUT, help="directory of samples, results and reports; else SUITE.POOL.eval", metavar="DIR"),
    Setting("--compare", "directory of another evaluation, to compare with", type=Path, metavar="OTHER"),
    Setting("--report", "directory of an evaluation: make its reports again, without a service", type=Path,
            metavar="DIR"),
    Setting("--fail-under", "lowest pass@1 in all for exit code 0", type=share, metavar="X"),
    replace(JSON, help="print results.json"),
    *SERVICE,
)  # fmt: skip
EXPORT = (
    Setting("samples", "what `submit` or `demo` wrote", type=Path, nargs="+", metavar="FILE"),
    replace(OUT, help="a file, or a directory for datasets", required=True, metavar="PATH"),
    FORMAT,
)
ARCHIVE = (
    Setting("action", "list what it holds, remove what is kept no longer, or write a run's samples to a file",
            choices=("ls", "prune", "export")),
    Setting("run", "one run, of another tenant than `default` as tenant:run; else all", nargs="?"),
    replace(OUT, help="of `export`: a file, or a directory for datasets", metavar="PATH"),
    FORMAT, JSON, *STORE,
)  # fmt: skip
RECORD = (
    replace(ARCHIVE[1], help="the run, of another tenant than `default` as tenant:run"),
    replace(JSON, name="--all", help="record every run"),
    replace(OUT, help="file of the trace", required=True),
    *STORE,
)
ROWS = Setting("--rows", "the tasks as they were submitted: rows as for `submit`", type=Path, required=True,
               metavar="FILE")  # fmt: skip
REPLAY = (
    replace(JOB_ID, help="the sample, as run:group:index"),
    Setting("samples", "what `submit` wrote, which has the sample; else the service is asked", type=Path, nargs="?",
            metavar="FILE"),
    ROWS,
    DATA_SOURCE,
    replace(SAMPLING, help="as it was submitted; only tool_timeout_ms counts"),
    replace(TOKENIZER, variable="PRORL_TOKENIZER"),
    SANDBOX, STATE_DIR, JSON, *SERVICE,
)  # fmt: skip
REGRADE = (
    Setting("samples", "what `submit` wrote", type=Path, metavar="FILE"),
    ROWS,
    replace(OUT, help="file of the same samples with their new rewards", required=True),
    DATA_SOURCE,
    SANDBOX,
    STATE_DIR,
    JSON,
)
VIEW = (
    Setting("path", "what `submit`, `demo` or `export` wrote, or the directory of an archive", type=Path),
    Setting("--bundle", "write the page with its data to this directory, and end", type=Path, metavar="DIR"),
    replace(PORT, help="port of the page on loopback, 0 takes a free one", default=0),
)
ROUTER = (replace(VIEW[0], help="TOML file of the cells, with the URL of the API of each"), PORT)
MOVE = (
    Setting("action", "move it to CELL, have it back, also where the other cell is lost for good, or say where it is",
            choices=("to", "back", "lost", "show")),
    replace(ARCHIVE[1], help="the run, of another tenant as tenant:run", nargs=None),
    Setting("cell", "of `to`: the cell that it is to be in", nargs="?"),
    Setting("seconds", "of `to`: how long its jobs in flight are waited for", type=whole, nargs="?", default=30),
    JSON, *SERVICE,
)  # fmt: skip
TASK = (
    Setting("action", "check one; the same, and hold a flaky one's groups; or let groups of data sources go again",
            choices=("check", "quarantine", "release")),
    Setting("names", "package.module, or package.module:Class; data sources to release, without one: they are listed",
            metavar="NAME", nargs="*"),
    Setting("--rows", "check the rows of this file instead, without sandboxes, by MODULE's family or the included",
            type=Path, metavar="FILE"),
    replace(JSON, help="with --rows the faults, or the list of `release`, as JSON"),
    Setting("--repeat", "run each example so often, and name those whose worlds or scores differ", type=positive,
            default=1, metavar="K"),
    SANDBOX,
    *STORE,
)  # fmt: skip
IMAGES = (
    Setting("action", "list them, fetch some, or remove some that are not needed", choices=("ls", "pull", "rm")),
    Setting("names", "images, or files of rows as for `submit` (NAME.jsonl), whose images are meant", nargs="*"),
    DATA_SOURCE,
    replace(JSON, help="print the list as JSON"),
    *STORE,
)
JOB = (
    JOB_ID,
    Setting("--timeline", "every state change, each attempt of a stage, and each turn", alone=True),
    JSON,
    *SERVICE,
)
LOGS = (JOB_ID, STATE_DIR, JSON, *SERVICE)
CANCEL = (
    Setting("kind", "what to cancel", choices=KINDS),
    replace(JOB_ID, help="run:group:index, run:group, run:batch or run"),
    *SERVICE,
)
RESUME = (
    Setting("kind", "what to resume", choices=("job", "run")),
    replace(JOB_ID, help="run:group:index, or run"),
    *SERVICE,
)
PAUSE = (
    replace(RESUME[0], help="what to pause"),
    *RESUME[1:],
    Setting("seconds", "how long at most; else a day", type=pause_seconds, nargs="?", default=PAUSE_MS // 1000),
    Setting("then", "what follows, if it was not resumed before; else resume", choices=("resume", "expire"), nargs="?",
            default="resume"),
)  # fmt: skip
FORK = (
    JOB_ID,
    Setting("--turn", "the last turn, from 0, that the samples have from it", type=whole, required=True, metavar="K"),
    replace(SAMPLES, name="--samples", help="samples that begin with it", metavar="N"),
    Setting(
        "group", "name of their group, behind the job; else it is derived, and a repeat is the same fork", nargs="?"
    ),
    *SERVICE,
)
RUN = (
    Setting("name", "of the run", nargs="?"),
    WEIGHT,
    Setting("--eval-share", "share of samples for evaluation, from 0.01 to 0.99, while training waits too", type=float,
            metavar="X", default=KEEP),
    MAX_JOBS,
    Setting("--max-unacked-groups", "groups begun and not acknowledged, at most; or none", type=quota, metavar="N",
            default=KEEP),
    MAX_BYTES,
    Setting("--archive-days", "how long the archive keeps its groups, 0: it takes none; or none: 30", type=quota,
            metavar="N", unit="days", default=KEEP),
    Setting("--archive-bytes", "disk that they may take, above it the oldest go; or none: 64 GiB", type=quota,
            metavar="N", unit="bytes", default=KEEP),
    JSON, *SERVICE,
)  # fmt: skip
TENANT = (
    Setting("name", "of the tenant", nargs="?"),
    replace(WEIGHT, help="share relative to the other tenants"),
    MAX_JOBS,
    replace(MAX_BYTES, help="size of the results of all its runs above which none of its groups begins; or none"),
    JSON,
    *STORE,
)
STATUS = (
    Setting("--watch", "interval at which it refreshes until Ctrl-C; 2 without a number", type=positive, nargs="?",
            alone=2, unit="s", metavar="S"),
    JSON, *STORE,
)  # fmt: skip
DOCTOR = (
    replace(BACKEND, help="URL of an inference server beyond those of the service"),
    TOKENIZER, SANDBOX,
    replace(JSON, help="print each check as a line of JSON"), *STORE,
)  # fmt: skip
FSCK = (
    Setting("file", "a copy: an RDB file or an appendonlydir, not a server", type=Path, nargs="?", metavar="FILE"),
    replace(JSON, help="print the whole report as JSON"),
    *STORE,
)
DASHBOARD = (
    *STORE,
    replace(PORT, help="port of the page on loopback, 0 takes a free one", default=9181),
    DATABASE,
    Setting("--rebuild", "write every record of RQ again, and end", alone=True),
)
INSTALL = (
    Setting("parts", "sandbox, demo, monitoring, units, image, examples; else sandbox, monitoring and examples",
            nargs="*", metavar="PART"),
    STATE_DIR,
)  # fmt: skip
UPGRADE = (
    Setting("protocol", "what the namespace is to speak when its stages are empty; else they stay so until Ctrl-C",
            type=positive, nargs="?", metavar="PROTOCOL"),
    *STORE,
)  # fmt: skip
COMPLETION = (Setting("shell", "the shell that reads it", choices=("bash", "zsh")),)
COMMANDS: Final = {
    "up": SubCommand("start a service on this machine, and keep it running until Ctrl-C", UP),
    "demo": SubCommand("roll out a small model on the example tasks, starting everything that it needs", DEMO),
    "submit": SubCommand("submit tasks, and write each sample to a file; run it again to resume", SUBMIT),
    "evaluate": SubCommand("sample a policy on a suite of tasks, and report pass@k; run it again to resume", EVALUATE),
    "export": SubCommand("write samples as JSON lines, Parquet or a Hugging Face data set", EXPORT),
    "replay": SubCommand("make a rollout's calls again in a new sandbox, and name the first that answers otherwise",
                         REPLAY),
    "regrade": SubCommand("score samples again with the EVAL code that is installed now", REGRADE),
    "archive": SubCommand("look at, prune or export what the archive keeps of acknowledged groups", ARCHIVE),
    "record": SubCommand("write a trace of a run, for simulations of routing: lengths, times, hashes, no text", RECORD),
    "view": SubCommand("show samples of a file or an archive in the web page, without a service", VIEW),
    "router": SubCommand("serve several services as one: each request goes to the cell of its run", ROUTER),
    "task": SubCommand("check a task family: its examples, empty and hostile answers, in real sandboxes", TASK),
    "images": SubCommand("list, fetch and remove images of sandboxes on this node", IMAGES),
    "job": SubCommand("where a job is, why it waits, and what it did", JOB),
    "logs": SubCommand("a job's events and its lines in the service's logs, by time", LOGS),
    "cancel": SubCommand("cancel a job, group, batch or run", CANCEL),
    "pause": SubCommand("pause a job at its next turn, or a run with all its jobs", PAUSE),
    "resume": SubCommand("resume a paused job, or a run with all its jobs", RESUME),
    "fork": SubCommand("make samples that begin with a job's turns and a copy of its sandbox", FORK),
    "run": SubCommand("show or change the weight and quotas of a training run; without a name, show all", RUN),
    "move": SubCommand("for operators of several cells: move a run, or have it back before it has arrived", MOVE),
    "tenant": SubCommand("for operators: show or change a tenant's weight and quota", TENANT),
    "status": SubCommand("what waits and why, which workers and backends there are", STATUS),
    "advise": SubCommand("what limits the service now, in one sentence, and what to change", (JSON, *STORE)),
    "install-tools": SubCommand("install sandboxes, a demo model, dashboards and alerts, as a plain user", INSTALL),
    "completion": SubCommand("print a script that completes command lines: source <(prorl-mq completion bash)",
                             COMPLETION),
    "doctor": SubCommand("check everything that a service needs, and say how to fix it", DOCTOR),
    "upgrade": SubCommand("hold admission, empty the stages, and give the namespace to another release", UPGRADE),
    "fsck": SubCommand("check the invariants of what Redis holds; changes nothing", FSCK),
    "dashboard": SubCommand("show jobs and workers in rq-dashboard, until Ctrl-C", DASHBOARD),
}  # fmt: skip
