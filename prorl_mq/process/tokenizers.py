"""Tokenizers on disk: what a process can say of their directories without loading them, and which a pool has."""

import contextvars
import importlib.util
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.ids import public
from prorl_mq.schema.strict import Misfit, convert

NONE: Final = "none: agents cannot talk to the policy; start again with --tokenizer DIR"
FIX: Final = "save the policy's tokenizer there (`tokenizer.save_pretrained(DIR)`), or name another directory"
MODELS: Final = "PRORL_MODELS"
NOT_CONFIGURED: Final = "no tokenizer is configured"
_FILES: Final = ("tokenizer_config.json", "tokenizer.json")
PROCESSOR: Final = ("processor_config.json", "preprocessor_config.json")
FOR_IMAGES: Final = ("PIL", "torch", "torchvision")  # what processors import; the extra `images`


def check_directory(directory: Path, option: str) -> None:
    """Raises `ConfigurationError`."""
    if not directory.is_dir():
        raise ConfigurationError(f"{option} {directory}: there is no such directory")
    if not any((directory / name).is_file() for name in _FILES):
        raise ConfigurationError(f"{option} {directory}: it has no {_FILES[0]}; {FIX}")


def sees(directory: Path) -> bool:
    """True if the files of an image processor lie beside a tokenizer."""
    return any((directory / name).is_file() for name in PROCESSOR)


def can_see() -> bool:
    """True if this environment has the libraries of image processors. None of them is imported."""
    return all(PathFinder.find_spec(name) or importlib.util.find_spec(name) for name in FOR_IMAGES)


class PoolModel(msgspec.Struct, frozen=True, kw_only=True):
    """The files and options that prompts of a pool are rendered with."""

    tokenizer: str  # directory; in the file relative to it
    format: str | None = None  # None: as the model shows
    template_options: dict[str, Any] = {}


class _ModelsFile(msgspec.Struct, frozen=True, kw_only=True):
    pools: dict[str, PoolModel]


_pool: contextvars.ContextVar[str] = contextvars.ContextVar("pool", default="")


def enter(pool: str) -> None:
    """Names the pool of the job that this task runs from now on."""
    _pool.set(pool)


def of_pools(environ: Mapping[str, str]) -> dict[str, PoolModel]:
    """The models of the file, by pool: `judge`, or `TENANT:judge` for one tenant's. Raises `ConfigurationError`."""
    named = environ.get(MODELS)
    return _parsed(Path(named).absolute()) if named else {}


def sight(environ: Mapping[str, str]) -> str:
    """Which pools' models take images, as a heartbeat says it: `+policy -judge -` has that of the pool `policy`, and
    neither `judge` nor those that the file does not name. `!policy` has it, and this environment lacks its libraries.
    """
    known = {name: Path(model.tokenizer) for name, model in of_pools(environ).items()}
    default = environ.get("PRORL_TOKENIZER")
    seeing = "+" if can_see() else "!"
    signs = [f"{seeing if sees(directory) else '-'}{name}" for name, directory in known.items()]
    return " ".join([*signs, seeing if default and sees(Path(default)) else "-"])


def of_job(environ: Mapping[str, str]) -> PoolModel | None:
    """The model that the file has for the pool of this task's job."""
    return of_pool(environ, _pool.get())


def of_pool(environ: Mapping[str, str], pool: str) -> PoolModel | None:
    """The model that the file has for a pool, `TENANT:POOL`."""
    known = of_pools(environ)
    return known.get(pool) or known.get(public(pool)) if pool else None


def missing(environ: Mapping[str, str]) -> str:
    """The beginning of an error: where a model was looked for."""
    pool = _pool.get()
    return f"pool {public(pool)!r} is not in the file of {MODELS}" if pool and environ.get(MODELS) else NOT_CONFIGURED


@lru_cache(1)
def _parsed(path: Path) -> dict[str, PoolModel]:
    """Read once: a change counts after a restart, when it is checked."""
    try:
        pools = convert(tomllib.loads(path.read_text()), _ModelsFile).pools
    except OSError as error:
        raise ConfigurationError(f"{MODELS}: {path} cannot be read: {error.strerror}") from None
    except (Misfit, ValueError) as error:
        raise ConfigurationError(f"{MODELS}: {path}: {error}") from None
    found = {}
    for pool, model in pools.items():
        directory = path.parent / model.tokenizer
        check_directory(directory, f"{MODELS}: pool {pool}: tokenizer")
        found[pool] = msgspec.structs.replace(model, tokenizer=str(directory))
    return found
