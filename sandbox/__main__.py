"""The sandboxes of this machine from the command line: check that they work, list them, look into one, sweep them.

python -m sandbox selfcheck --kind auto [--image IMAGE] [--attack]
python -m sandbox choose --state-dir DIR
python -m sandbox list --state-dir DIR
python -m sandbox shell --state-dir DIR SANDBOX
python -m sandbox sweep --state-dir DIR [--keep OWNER ...]
python -m sandbox keepers --state-dir DIR
python -m sandbox serve --state-dir DIR --tokens FILE
python -m sandbox contract
"""

import argparse
import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from prorl_mq.settings import Setting, SubCommand, add_commands
from sandbox import login
from sandbox.attack.run import attack, report
from sandbox.errors import SandboxError
from sandbox.isolators.apptainer import ApptainerProvider
from sandbox.isolators.choice import AUTO, UNTRUSTED, choose
from sandbox.isolators.kinds import KINDS, OWN_KINDS, make_provider
from sandbox.keeper import place
from sandbox.keeper.wire import Counts, counts
from sandbox.lifetime import label
from sandbox.lifetime.find import find
from sandbox.lifetime.owner import OwnerKind
from sandbox.lifetime.owner import parse as parse_owner
from sandbox.lifetime.sweep import sweep
from sandbox.selfcheck import Check, selfcheck

KEEPER_S = 5.0
STATE_DIR = Setting("--state-dir", "directory of the sandboxes", type=Path, required=True)
TOOLS_DIR = Setting(
    "--tools-dir",
    "what `prorl-mq install-tools` has filled; else the state directory",
    type=Path,
    variable="PRORL_SANDBOX_TOOLS",
)
SUB_COMMANDS = {
    "selfcheck": SubCommand(
        "make a sandbox, try everything, print a table",
        (
            Setting("--kind", "the kind of sandbox", choices=(AUTO, UNTRUSTED, *KINDS), default=AUTO),
            Setting("--image", "a directory, a SIF file or a registry's address; else the base image"),
            replace(STATE_DIR, help="where its directory goes; else a temporary directory", required=False),
            Setting("--attack", "attack it instead, and print what is contained", alone=True),
            replace(TOOLS_DIR, help="what `prorl-mq install-tools` has filled; else $PRORL_STATE, else .state"),
        ),
    ),
    "choose": SubCommand("print the kind that works here, then why", (STATE_DIR, TOOLS_DIR)),
    "list": SubCommand("print what is there, warm ones too", (STATE_DIR,)),
    "shell": SubCommand(
        "a shell in a running sandbox, on this terminal",
        (STATE_DIR, Setting("sandbox", "its id, its owner's job id, or the beginning of one")),
    ),
    "sweep": SubCommand(
        "destroy what no --keep names",
        (STATE_DIR, Setting("--keep", "an owner whose sandboxes stay; may be repeated", metavar="OWNER", again=True)),
    ),
    "keepers": SubCommand("print how the keepers are doing", (STATE_DIR,)),
    "serve": SubCommand(
        "serve this machine's sandboxes to other machines",
        (
            Setting("--kind", "the kind of sandbox", choices=(AUTO, UNTRUSTED, *OWN_KINDS), default=AUTO),
            STATE_DIR,
            TOOLS_DIR,
            Setting("--tokens", "file of lines NAME TOKEN, one for each service", type=Path, required=True),
            Setting("--listen", "where it listens", metavar="HOST:PORT", default="127.0.0.1:7443"),
            Setting("--tls", "PEM file of its certificate and key; else it speaks plain HTTP", type=Path),
            Setting("--most", "sandboxes at a time", type=int, default=64),
        ),
    ),
    "contract": SubCommand("try the server of remote sandboxes that the environment names, and print a table"),
}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sandbox", description="The sandboxes of this machine.")
    set_ones = {name: text for name, text in os.environ.items() if text}  # an empty variable counts as none here
    add_commands(parser, SUB_COMMANDS, set_ones)
    return parser.parse_args(arguments)


def tools_of(options: argparse.Namespace) -> Path:
    return options.tools_dir or Path(os.environ.get("PRORL_STATE") or ".state")


async def kind_of(options: argparse.Namespace, state_dir: Path) -> str:
    if options.kind not in {AUTO, UNTRUSTED}:
        return str(options.kind)
    choice = await choose(state_dir, tools_of(options), options.kind)
    print(choice.why)
    return choice.kind


async def check_kind(options: argparse.Namespace, state_dir: Path) -> list[Check]:
    tools, kind = tools_of(options), await kind_of(options, state_dir)
    python_dir = tools / "sandbox-python" if (tools / "sandbox-python").is_dir() else None
    provider = make_provider(
        kind, node=socket.gethostname(), state_dir=state_dir, python_dir=python_dir, tools_dir=tools
    )
    try:
        if isinstance(provider, ApptainerProvider):
            print(await provider.describe(options.image))
        return await selfcheck(provider, options.image)
    finally:
        await provider.aclose()


def run_selfcheck(options: argparse.Namespace) -> int:
    """Prints a line for each check. 1: one of them failed."""
    with tempfile.TemporaryDirectory(prefix="sandbox-selfcheck-") as temporary:
        Path(temporary).chmod(0o755)  # the sandbox's own directory in it is closed
        state_dir = options.state_dir or Path(temporary)
        if options.attack:
            kind = asyncio.run(kind_of(options, state_dir))
            return report(attack(kind, options.image, state_dir, tools_of(options)))
        checks = asyncio.run(check_kind(options, state_dir))
    return printed(checks)


def printed(checks: Sequence[Check]) -> int:
    for check in checks:
        verdict = "failed" if check.problem else "ok"
        print(f"{check.name:<30} {verdict:<7} {check.ms:8.1f} ms  {check.problem or check.note}".rstrip(), flush=True)
    return int(any(check.problem for check in checks))


def run_choose(options: argparse.Namespace) -> int:
    choice = asyncio.run(choose(options.state_dir, options.tools_dir))
    print(f"{choice.kind}\n{choice.why}")
    return 0


def run_list(options: argparse.Namespace) -> int:
    for _, made in label.labelled(options.state_dir):
        line = f"{made.sandbox_id}  {made.kind:<10}  {_state(made):<8}  {made.pid:>8}  {made.node}  {made.owner}"
        print(f"{line}  (writable by {made.writable})" if made.writable else line)
    return 0


def _state(made: label.Label) -> str:
    if made.alive:
        owner = parse_owner(made.owner)
        return "warm" if owner is not None and owner.kind is OwnerKind.POOL else "alive"
    return "starting" if made.unfinished else "dead"


def run_shell(options: argparse.Namespace) -> int:
    """The shell's exit code."""
    directories = {made.sandbox_id: (directory, made) for directory, made in label.labelled(options.state_dir)}
    directory, made = directories[find(options.sandbox, (made for _, made in directories.values())).sandbox_id]
    return login.shell(made, directory.absolute())


def run_keepers(options: argparse.Namespace) -> int:
    """1: a keeper does not answer, or there is none."""
    answers = asyncio.run(keepers(options.state_dir))
    for name, said in answers.items():
        print(f"{name}  {'does not answer' if said is None else msgspec.json.encode(said).decode()}")
    return int(None in answers.values() or not answers)


async def keepers(state_dir: Path) -> dict[str, Counts | None]:
    found: dict[str, Counts | None] = {}
    for directory in place.all_below(state_dir):
        try:
            async with asyncio.timeout(KEEPER_S):
                found[directory.name] = await counts(directory)
        except (OSError, TimeoutError):
            found[directory.name] = None
    return found


def run_sweep(options: argparse.Namespace) -> int:
    kept = set(options.keep)
    for sandbox_id in asyncio.run(sweep(options.state_dir, kept.__contains__)):
        print(f"destroyed {sandbox_id}")
    return 0


def run_serve(options: argparse.Namespace) -> int:
    from sandbox.serving.program import Serving, serve

    kind, tools = asyncio.run(kind_of(options, options.state_dir)), tools_of(options)
    python_dir = tools / "sandbox-python" if (tools / "sandbox-python").is_dir() else None
    provider = make_provider(
        kind, node=socket.gethostname(), state_dir=options.state_dir, python_dir=python_dir, tools_dir=tools
    )
    given = Serving(options.listen, options.state_dir, options.tokens, options.tls, tools / "images", options.most)
    asyncio.run(serve(provider, given))
    return 0


def run_contract(_: argparse.Namespace) -> int:
    """Prints a line for each check as it ends: with a server that is wrong each may take a minute. 1: one failed."""
    from sandbox.contract.run import contract
    from sandbox.remote.access import access_from

    async def told() -> int:
        return max([printed([check]) async for check in contract(access_from(os.environ))])

    return asyncio.run(told())


def main() -> int:
    options = parse(sys.argv[1:])
    try:
        commands = {
            "selfcheck": run_selfcheck,
            "choose": run_choose,
            "list": run_list,
            "shell": run_shell,
            "sweep": run_sweep,
            "keepers": run_keepers,
            "serve": run_serve,
            "contract": run_contract,
        }
        return commands[options.command](options)
    except SandboxError as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
