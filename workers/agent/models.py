"""The model of each pool: its tokenizer's directory, format and template options, from a file and the environment."""

import contextvars
import os
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.process import tokenizers
from prorl_mq.schema.ids import public
from prorl_mq.schema.strict import Misfit, convert
from workers.agent.template import TemplateError

VARIABLE: Final = "PRORL_MODELS"
_pool: contextvars.ContextVar[str] = contextvars.ContextVar("pool", default="")


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The files and options that prompts of a pool are rendered with."""

    tokenizer: str  # directory; in the file relative to it
    format: str | None = None  # None: as the model shows
    template_options: dict[str, Any] = {}


class _ModelsFile(msgspec.Struct, frozen=True, kw_only=True):
    pools: dict[str, Model]


def enter(pool: str) -> None:
    """Names the pool of the job that this task runs from now on."""
    _pool.set(pool)


def current(environ: Mapping[str, str]) -> Model | None:
    """The model of the pool of this task's job; None where neither the file nor the environment has one."""
    pool, known = _pool.get(), of_pools(environ)
    return known.get(pool) or known.get(public(pool) if pool else "") or default(environ)


def default(environ: Mapping[str, str]) -> Model | None:
    """The model of pools that the file does not name: PRORL_TOKENIZER, PRORL_RENDERER and PRORL_TEMPLATE_OPTIONS."""
    if not (directory := environ.get("PRORL_TOKENIZER")):
        return None
    options = _options(environ.get("PRORL_TEMPLATE_OPTIONS") or "{}")
    return Model(tokenizer=directory, format=environ.get("PRORL_RENDERER") or None, template_options=options)


def of_pools(environ: Mapping[str, str]) -> dict[str, Model]:
    """The models of the file, by pool: `judge`, or `TENANT:judge` for one tenant's. Raises `ConfigurationError`."""
    if not (named := environ.get(VARIABLE)):
        return {}
    return _parsed(Path(named).absolute())


@lru_cache(1)
def _parsed(path: Path) -> dict[str, Model]:
    """Read once: a change counts after a restart, when it is checked."""
    try:
        pools = convert(tomllib.loads(path.read_text()), _ModelsFile).pools
    except OSError as error:
        raise ConfigurationError(f"{VARIABLE}: {path} cannot be read: {error.strerror}") from None
    except (Misfit, ValueError) as error:
        raise ConfigurationError(f"{VARIABLE}: {path}: {error}") from None
    found = {}
    for pool, model in pools.items():
        directory = path.parent / model.tokenizer
        tokenizers.check_directory(directory, f"{VARIABLE}: pool {pool}: tokenizer")
        found[pool] = msgspec.structs.replace(model, tokenizer=str(directory))
    return found


def _options(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise TemplateError(f"PRORL_TEMPLATE_OPTIONS is no JSON object: {error}") from error


def told(environ: Mapping[str, str] = os.environ) -> str:
    """The beginning of an error: where a model was looked for."""
    pool = public(_pool.get()) if _pool.get() else ""
    return f"pool {pool!r} is not in the file of {VARIABLE}" if environ.get(VARIABLE) else "no tokenizer is configured"
