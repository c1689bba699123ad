"""The command `prorl-mq`: start the service, submit tasks, look at jobs."""

import argparse
import asyncio
import importlib
import sys
from collections.abc import Sequence

from prorl_mq.cli.arguments import module_of, parse
from prorl_mq.errors import ProrlError
from prorl_mq.extras import advice, extra_of
from prorl_mq.process.screen.terminal import screens


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 it did not work, 2 wrong command line or files, 130 interrupted."""
    with screens():
        return _run(parse(sys.argv[1:] if argv is None else argv))


def _run(given: argparse.Namespace) -> int:
    try:
        return _carry_out(given)
    except ModuleNotFoundError as error:  # some libraries are imported where a command first needs them
        if error.name is None or extra_of(error.name) is None:
            raise
        print(f"prorl-mq {given.command}: {advice(error)}", file=sys.stderr)
        return 2


def _carry_out(given: argparse.Namespace) -> int:
    command = importlib.import_module(f"prorl_mq.cli.{module_of(given)}")
    try:
        return int(asyncio.run(command.run(given)))
    except ProrlError as error:
        print(f"prorl-mq {given.command}: {error}".replace("\n", "\n  "), file=sys.stderr)
        return 2 if isinstance(error, command.FAULTS) else 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    except BrokenPipeError:  # whoever read our output has gone
        sys.stderr.close()
        return 141
    except OSError as error:
        if error.filename is None:  # of no file
            raise
        reason = f"{error.filename}: {error.strerror}; check this path, who may write there, and the room on its disk"
        print(f"prorl-mq {given.command}: {reason}", file=sys.stderr)
        return 2
