"""The command line: sub-commands and their options. A wrong name is answered with the nearest valid one."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prorl_mq import __version__
from prorl_mq.process.arguments import Parser, positive, unknown
from prorl_mq.process.settings import NAMESPACE, Setting, add

URL = "http://127.0.0.1:8080"
FAMILIES = (
    "code", "gem", "human_eval", "math", "reasoning_gym", "reward_service", "stem", "swe", "textarena", "verifiers",
)  # fmt: skip
KINDS = ("job", "group", "batch", "run")
STORED_IN = Setting("--redis", "a Redis server; else that of `up`", metavar="URL")
STATE_DIR = Setting("--state-dir", "data and logs", type=Path, default=".state", metavar="DIR", variable="PRORL_STATE")
ADDRESS = Setting("--url", "of the API, or of its Redis", default=URL)


SANDBOXES = "auto, apptainer, bubblewrap, local or none (auto)"


def arguments() -> tuple[Parser, dict[str, Parser]]:
    """The whole command line, and each command's own by its name."""
    parser = Parser(prog="prorl-mq", description="Rollouts of LLM agents for reinforcement learning, on Redis streams.")
    parser.add_argument("--version", action="version", version=f"prorl-mq {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    return parser, {made.prog.split()[-1]: made for made in (command(commands) for command in COMMANDS)}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Exits with code 2 and one line on standard error if the command line is wrong."""
    parser, made = arguments()
    given, extra = parser.parse_known_args(argv)
    if extra:
        command = made[given.command]
        options = [option for action in command._actions for option in action.option_strings]  # noqa: SLF001
        name = extra[0].partition("=")[0]
        command.error(
            unknown("option", name, options) if name.startswith("-") else f"{extra[0]!r} is an unexpected argument"
        )
    return given


def _up(commands: Any) -> Parser:
    up = _command(commands, "up", "start a service on this machine, and keep it running until Ctrl-C")
    redis = up.add_mutually_exclusive_group()
    redis.add_argument("--redis", metavar="URL", help="a running Redis server (default: start one)")
    redis.add_argument("--redis-server", choices=("installed", "embedded"), help="which server to start")
    _state_dir(up)
    for stage in ("init", "run", "eval"):
        up.add_argument(f"--{stage}", type=count, default=1, metavar="N", help=f"{stage} worker processes (1)")
    up.add_argument("--slots", type=positive, default=8, metavar="N", help="jobs at a time in each (8)")
    up.add_argument("--port", type=port, default=8080, help="of the API on loopback; 0 takes a free one (8080)")
    up.add_argument(
        "--compat-port",
        type=port,
        metavar="PORT",
        help="of ProRL Agent's routes; 0 takes a free one (8006)",
    )
    add(up, (NAMESPACE,), os.environ)
    up.add_argument("--sandbox", default="auto", metavar="KIND", help=SANDBOXES)
    up.add_argument("--tokenizer", type=Path, metavar="DIR", help="the policy's tokenizer")
    up.add_argument("--backend", action="append", default=[], metavar="URL", help="an inference server of the policy")
    up.add_argument(
        "--local-backend", type=Path, metavar="MODEL_DIR", help="serve this model with vLLM on this machine"
    )
    up.add_argument("--no-dashboard", dest="dashboard", action="store_false", help="do not start rq-dashboard")
    up.add_argument("--grace", type=float, default=30.0, metavar="S", help="how long running jobs get at the end (30)")
    return up


def _demo(commands: Any) -> Parser:
    demo = _command(commands, "demo", "roll out a small model on the example tasks, starting everything that it needs")
    _state_dir(demo)
    demo.add_argument(
        "--backend", metavar="URL", default=os.environ.get("BACKEND") or None, help="instead of starting vLLM"
    )
    demo.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="of the backend's model (default: the demo model's)"
    )
    demo.add_argument("--sandbox", default="auto", metavar="KIND", help=SANDBOXES)
    demo.add_argument(
        "--dapo", dest="module", action="store_const", const="demo_dapo",
        help="fill a DAPO batch; run again, it continues where it was killed",
    )  # fmt: skip
    demo.add_argument("--n", type=positive, default=4, help="samples of each task (4)")
    demo.add_argument("--family", choices=FAMILIES, help="a few tasks of this family; they need not be solved")
    demo.add_argument("--tasks", type=Path, metavar="FILE", help="other tasks than the examples")
    demo.add_argument("--out", type=Path, default=Path("out.jsonl"), metavar="FILE", help="trajectories (out.jsonl)")
    return demo


def _submit(commands: Any) -> Parser:
    submit = _command(commands, "submit", "submit tasks, and write each sample to a file; run it again to resume")
    submit.add_argument(
        "tasks", type=Path, help='one line per task: {"task_id", "data_source", "payload"}, or a group request'
    )
    submit.add_argument(
        "--out", type=Path, metavar="FILE", help="one JSON line per sample (TASKS' name with .out.jsonl)"
    )
    submit.add_argument("--n", type=positive, default=1, help="samples of each task (1)")
    submit.add_argument("--run", metavar="NAME", help="the training run (default: the name of the tasks' file)")
    submit.add_argument(
        "--batch", metavar="NAME", help="what makes a repeat the same batch (default: from its content)"
    )
    submit.add_argument("--data-source", metavar="NAME", help="for lines that do not name one")
    submit.add_argument("--agent", metavar="NAME", help="a harness that acts in the sandbox, not the built-in loop")
    submit.add_argument("--sampling", nargs="+", action="extend", default=[], metavar="K=V", help="as temperature=0.7")
    submit.add_argument("--limits", nargs="+", action="extend", default=[], metavar="K=V", help="as run_ms=60000")
    submit.add_argument(
        "--dapo", nargs="+", action="extend", default=[], metavar="K=V", help="fill a DAPO batch: target_groups=32"
    )
    _url(submit)
    return submit


def _task(commands: Any) -> Parser:
    task = _command(commands, "task", "check a task family: its examples, empty and hostile answers, in real sandboxes")
    task.add_argument("action", choices=("check",))
    task.add_argument("module_name", metavar="MODULE", help="package.module, or package.module:Class")
    task.add_argument("--sandbox", default="auto", metavar="KIND", help=SANDBOXES)
    _state_dir(task)
    return task


def _export(commands: Any) -> Parser:
    export = _command(commands, "export", "write samples as JSON lines, Parquet or a Hugging Face data set")
    export.add_argument("samples", type=Path, nargs="+", metavar="FILE", help="what `submit` or `demo` wrote")
    export.add_argument("--out", type=Path, required=True, metavar="PATH", help="a file, or a directory for datasets")
    export.add_argument(
        "--format", choices=("jsonl", "parquet", "datasets"), help="(by --out: .jsonl, .parquet, else datasets)"
    )
    return export


def _job(commands: Any) -> Parser:
    job = _command(commands, "job", "where a job is, why it waits, and what it did")
    job.add_argument("id", help="run:group:index")
    job.add_argument("--timeline", action="store_true", help="every state change, and each attempt of a stage")
    _url(job)
    return job


def _cancel(commands: Any) -> Parser:
    cancel = _command(commands, "cancel", "cancel a job, group, batch or run")
    cancel.add_argument("kind", choices=KINDS)
    cancel.add_argument("id", help="run:group:index, run:group, run:batch or run")
    _url(cancel)
    return cancel


def _status(commands: Any) -> Parser:
    status = _command(commands, "status", "what waits and why, which workers and backends there are")
    status.add_argument(
        "--watch", type=positive, nargs="?", const=2, metavar="S", help="refresh every S seconds (2) until Ctrl-C"
    )
    _redis(status)
    return status


def _logs(commands: Any) -> Parser:
    logs = _command(commands, "logs", "a job's events and its lines in the service's logs, by time")
    logs.add_argument("id", help="run:group:index")
    _state_dir(logs)
    _url(logs)
    return logs


def _doctor(commands: Any) -> Parser:
    doctor = _command(commands, "doctor", "check everything that a service needs, and say how to fix it")
    doctor.add_argument("--backend", action="append", default=[], metavar="URL", help="beyond those of the service")
    doctor.add_argument("--tokenizer", type=Path, metavar="DIR", help="the policy's tokenizer")
    doctor.add_argument("--sandbox", default="auto", metavar="KIND", help=SANDBOXES)
    _redis(doctor)
    return doctor


def _fsck(commands: Any) -> Parser:
    fsck = _command(commands, "fsck", "check the invariants of what Redis holds; changes nothing")
    fsck.add_argument(
        "file", type=Path, nargs="?", metavar="FILE", help="a copy: an RDB file or an appendonlydir, not a server"
    )
    fsck.add_argument("--json", action="store_true", help="the whole report as JSON")
    _redis(fsck)
    return fsck


def _dashboard(commands: Any) -> Parser:
    dashboard = _command(commands, "dashboard", "show jobs and workers in rq-dashboard, until Ctrl-C")
    _redis(dashboard)
    dashboard.add_argument("--port", type=port, default=9181, help="of the page on loopback; 0 takes a free one (9181)")
    dashboard.add_argument("--database", type=count, default=1, metavar="N", help="of Redis, for RQ's records (1)")
    dashboard.add_argument("--rebuild", action="store_true", help="make RQ's records again, and end")
    return dashboard


def _run(commands: Any) -> Parser:
    run = _command(commands, "run", "show or change the weight and quotas of a training run; without a name, show all")
    run.add_argument("name", nargs="?", help="of the run")
    _setting(run, "weight", float, "W", "relative to the other runs of the tenant")
    _setting(run, "eval-share", float, "X", "share of samples for evaluation while training waits too")
    _setting(run, "max-jobs", quota, "N", "jobs in flight at most, or none")
    _setting(run, "max-unacked-groups", quota, "N", "groups begun and not acknowledged, at most; or none")
    _setting(run, "max-unacked-bytes", quota, "N", "bytes of results above which no group begins")
    _url(run)
    return run


def _tenant(commands: Any) -> Parser:
    tenant = _command(commands, "tenant", "for operators: show or change a tenant's weight and quota")
    tenant.add_argument("name", nargs="?", help="of the tenant")
    _setting(tenant, "weight", float, "W", "relative to the other tenants")
    _setting(tenant, "max-jobs", quota, "N", "jobs in flight at most, or none")
    _redis(tenant)
    return tenant


def _setting(parser: Parser, name: str, kind: Any, metavar: str, what: str) -> None:
    parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=what, default=argparse.SUPPRESS)


def _command(commands: Any, name: str, what: str) -> Parser:
    made: Parser = commands.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    modules = {
        "job": "looking", "cancel": "looking", "status": "overview", "run": "shares", "tenant": "shares",
        "fsck": "local.fsck",
    }  # fmt: skip
    made.set_defaults(module=modules.get(name, name))
    return made


def _redis(parser: Parser) -> None:
    add(parser, (STORED_IN, NAMESPACE, STATE_DIR), os.environ)


def _state_dir(parser: Parser) -> None:
    add(parser, (STATE_DIR,), os.environ)


def _url(parser: Parser) -> None:
    add(parser, (ADDRESS,), os.environ)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) > 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 1024")
    return int(text)


def quota(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor none")
    return int(text)


def port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


COMMANDS = (
    _up, _demo, _submit, _export, _task, _job, _logs, _cancel, _run, _tenant, _status, _doctor, _fsck,
    _dashboard,
)  # fmt: skip
