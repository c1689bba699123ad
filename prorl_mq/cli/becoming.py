"""Programs that a command becomes, which the command line may not import."""

import os
import sys
from importlib.util import find_spec
from typing import Final, NoReturn

from prorl_mq.errors import ConfigurationError

NEEDED: Final = ("starlette", "uvicorn", "prometheus_client")


def become(module: str, *words: str) -> NoReturn:
    """Raises `ConfigurationError` where the packages of the service are not installed."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigurationError(f"this needs {', '.join(missing)}: pip install 'prorl-mq[service]'")
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *words])  # noqa: S606 - it becomes that
