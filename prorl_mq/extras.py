"""Libraries that are not installed, the extra that brings them, and entry points that say so in one line."""

import importlib
import importlib.metadata
import re
import sys
from typing import Final

DISTRIBUTION: Final = "prorl-mq"
ALL: Final = "demo"  # made of other extras, of which one is enough


def extra_of(module: str) -> str | None:
    """The extra of the package that brings a module; None if none does, or it comes with the package itself."""
    wanted = module.partition(".")[0].replace("_", "-").lower()
    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # run from a folder of sources
        return None
    found = list[str]()
    for line in required:
        name, _, conditions = line.partition(";")
        distribution = re.split(r"[^A-Za-z0-9_.-]", name, maxsplit=1)[0].replace("_", "-").lower()
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", conditions)
        if extra and distribution == wanted:
            found.append(extra[1])
    found = [extra for extra in found if extra != ALL] or found
    return "service" if "service" in found else next(iter(found), None)


def advice(error: ImportError) -> str:
    """The missing library, and the command that installs it."""
    if error.name is None or not isinstance(error, ModuleNotFoundError):
        return str(error)
    extra = extra_of(error.name)
    command = f": pip install '{DISTRIBUTION}[{extra}]'" if extra else ""
    return f"the library {error.name.partition('.')[0]} is not installed{command}"


def worker() -> int:
    """`prorl-worker`."""
    return _start("prorl-worker", "workers.__main__")


def api() -> int:
    """`prorl-api`."""
    return _start("prorl-api", "api.__main__")


def keeper() -> int:
    """`prorl-keeper`."""
    return _start("prorl-keeper", "workers.node.keeper")


def _start(program: str, module: str) -> int:
    """Runs a program's `main`; exit code 2 and one line where the service's libraries are not installed."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or extra_of(error.name) is None:
            raise
        print(f"{program}: {advice(error)}", file=sys.stderr)
        return 2
    return int(found.main() or 0)
