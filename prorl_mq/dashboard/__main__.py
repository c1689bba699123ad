"""`python -m prorl_mq.dashboard project|serve`: the two processes behind `prorl-mq dashboard`."""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Final

from prorl_mq.dashboard.running import project, serve
from prorl_mq.dashboard.settings import settings_from
from prorl_mq.errors import ConfigurationError

NICENESS: Final = 10  # it must not take the workers' cores; the mirror may lag


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 after SIGTERM, 2 for a wrong configuration."""
    try:
        settings = settings_from(sys.argv[1:] if argv is None else argv)
        os.nice(NICENESS)
        asyncio.run(project(settings) if settings.role == "project" else serve(settings))
    except ConfigurationError as error:
        print(f"prorl-mq dashboard: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
