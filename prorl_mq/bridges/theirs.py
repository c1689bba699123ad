"""A bridge's needs from outside: a trainer's modules, and the service's address."""

import importlib
import os
from typing import Any

from prorl_mq.errors import ConfigurationError


def imported(module: str, package: str) -> Any:
    """A module of a trainer. `package` is what pip installs, or a name that says in brackets where to have it from.

    Raises `ImportError`, which names the package and what failed in it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):  # it is there, and lacks something
            raise ImportError(f"{package} is installed, but cannot be imported: {error}", name=error.name) from error
        how = "" if "(" in package else f": pip install {package!r}"
        raise ImportError(f"this bridge needs {package}{how}", name=module) from error


def address() -> tuple[str, str | None]:
    """URL and token of the service, for bridges that a trainer starts without arguments of theirs."""
    url = os.environ.get("PRORL_URL")
    if not url:
        raise ConfigurationError("PRORL_URL is not set: it is the address of the service, http://HOST:8080")
    return url, os.environ.get("PRORL_TOKEN")
