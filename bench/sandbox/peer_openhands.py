"""The bash session of OpenHands' terminal tool: `tmux` or `subprocess`, in its own process, as inside a container."""

import logging
import os
import sys
import tempfile

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # before the import: else it waits for the network

from openhands.tools.terminal.definition import TerminalAction
from openhands.tools.terminal.terminal import create_terminal_session

from bench.sandbox.peer_loop import serve, timed

ACTION = TerminalAction(command="true")


def once() -> None:
    said = session.execute(ACTION)
    if said.exit_code != 0:
        raise SystemExit(f"true ended with {said.exit_code}")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as directory:
        session = create_terminal_session(work_dir=directory, terminal_type=sys.argv[1])
        session.initialize()
        once()
        serve(lambda count: timed(once, count))
        session.close()
