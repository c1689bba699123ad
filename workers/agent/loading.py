"""Loads the renderers of models: each once per process, off the event loop."""

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.process import tokenizers
from prorl_mq.process.tokenizers import MODELS, PoolModel
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.ids import DEFAULT_TENANT, pool_ref, public
from workers.agent.pictures.messages import of_job
from workers.agent.renderer import Renderer
from workers.agent.template import TemplateError


class NoTokenizer(TemplateError):
    """A RUN worker was started without one."""

    cause = Cause.NODE


MOST: Final = 8  # renderers in memory; another one takes the place of the one unused for longest
Key = tuple[str, str, str | None]
_cache: OrderedDict[Key, Renderer] = OrderedDict()
_loading = threading.Lock()


def _key(directory: Path, options: Mapping[str, Any] | None, family: str | None) -> Key:
    """No link is followed: that would ask a file system, which may be far away, for each job."""
    return str(directory.absolute()), repr(sorted((options or {}).items())), family


def _load(directory: Path, options: Mapping[str, Any] | None, family: str | None, keep: bool = True) -> Renderer:
    key = _key(directory, options, family)
    with _loading:
        if key not in _cache:
            os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it misses PyTorch, and we do not
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
            made = Renderer(tokenizer, directory.name, options, family, _model_type(directory), directory)
            if not keep:
                return made
            _cache[key] = made
        _cache.move_to_end(key)
        while len(_cache) > MOST:
            _cache.popitem(last=False)
        return _cache[key]


def _model_type(directory: Path) -> str | None:
    """The `model_type` of config.json, where one lies beside the tokenizer."""
    try:
        config = msgspec.json.decode((directory / "config.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    kind = config.get("model_type") if isinstance(config, dict) else None
    return kind if isinstance(kind, str) else None


async def load_renderer(
    directory: Path, options: Mapping[str, Any] | None = None, family: str | None = None
) -> Renderer:
    """The renderer of the model in a local directory. `family` overrides what its template shows."""
    key = _key(directory, options, family)
    found = _cache.get(key)
    if found is None:
        return await asyncio.to_thread(_load, directory, options, family)
    with suppress(KeyError):  # a thread may have thrown it out just now
        _cache.move_to_end(key)
    return found


async def policy_renderer() -> Renderer:
    """The renderer of the pool whose job this task runs. Raises `NoTokenizer`, and what loading a model raises.

    PRORL_MODELS names a file with the models of pools; of others, PRORL_TOKENIZER, PRORL_RENDERER and
    PRORL_TEMPLATE_OPTIONS say which it is.
    """
    model = _model()
    if model is None:
        raise NoTokenizer(
            f"{tokenizers.missing(os.environ)}: start the worker with --tokenizer DIR, the directory that holds "
            f"the policy's tokenizer.json and chat template (or set PRORL_TOKENIZER), or name the pool's in {MODELS}"
        )
    return await _of(model)


async def pool_renderer(pool: str) -> Renderer:
    """The renderer of another pool, `TENANT:POOL`, than that of this task's job. Raises as `policy_renderer`.

    Pools that the file of PRORL_MODELS does not name have the process's own, as jobs of them do.
    """

    async def loaded() -> Renderer:
        tokenizers.enter(pool)
        return await policy_renderer()

    return await asyncio.create_task(loaded())  # a task of its own: this one stays in its job's pool


async def usable_renderer() -> Renderer:
    """The default renderer, before any job needs it. Raises `ConfigurationError` in one line, with what to do."""
    directory = os.environ.get("PRORL_TOKENIZER")
    return await _usable(policy_renderer, f"--tokenizer {directory}")


async def check_pool(pool: str) -> None:
    """Checks the model of a pool that a task family asks in EVAL. Raises `ConfigurationError`.

    A name without a tenant is each tenant's pool: all that the file has of that name are checked.
    """
    wanted = {pool if ":" in pool else pool_ref(DEFAULT_TENANT, pool): pool}
    if ":" not in pool:
        theirs = [each for each in tokenizers.of_pools(os.environ) if public(each) == pool]
        if theirs and _default() is None and tokenizers.of_pool(os.environ, next(iter(wanted))) is None:
            wanted.clear()  # only those tenants have a judge
        wanted |= {each: each for each in theirs}
    for named, told in wanted.items():
        await _usable(partial(pool_renderer, named), f"pool {told}, which a task family asks in EVAL")


async def usable_models() -> AsyncIterator[tuple[str, Renderer]]:
    """Pools in the file of models with their renderers, one after another, each checked as `usable_renderer` does.
    They are not kept: a worker that gets no job of a pool has no memory of its model. Raises `ConfigurationError`.
    """
    for pool, model in tokenizers.of_pools(os.environ).items():
        load = partial(_load, Path(model.tokenizer), model.template_options, model.format, keep=False)
        yield pool, await _usable(partial(asyncio.to_thread, load), f"{MODELS}: pool {pool}: {model.tokenizer}")


async def load_ahead(pool: str) -> None:
    """Loads the renderer of a job's pool, which `policy_renderer` gives this task from now on.

    What fails here is raised to whoever asks for it.
    """
    tokenizers.enter(pool)
    with suppress(Exception):
        if _model() is None:
            return
        renderer = await policy_renderer()
        if of_job():  # of a job with images: the model's processor, too
            await asyncio.to_thread(renderer.vision)


def names_models(environ: Mapping[str, str]) -> bool:
    """True if this process was started with a model of any pool."""
    return bool(environ.get(MODELS) or environ.get("PRORL_TOKENIZER"))


def _model() -> PoolModel | None:
    """That of this task's job."""
    return tokenizers.of_job(os.environ) or _default()


async def _of(model: PoolModel) -> Renderer:
    return await load_renderer(Path(model.tokenizer), model.template_options, model.format)


async def _usable(load: Callable[[], Awaitable[Renderer]], what: str) -> Renderer:
    try:
        return await load()
    except TemplateError as error:
        raise ConfigurationError(f"{what}: {error}") from error
    except (OSError, ValueError, KeyError) as error:  # of the tokenizer's library
        said = str(error).strip().partition("\n")[0]
        raise ConfigurationError(f"{what} cannot be loaded ({said}); {tokenizers.FIX}") from error


def _default() -> PoolModel | None:
    """The model of pools that the file does not name."""
    if not (directory := os.environ.get("PRORL_TOKENIZER")):
        return None
    options = _options(os.environ.get("PRORL_TEMPLATE_OPTIONS") or "{}")
    return PoolModel(tokenizer=directory, format=os.environ.get("PRORL_RENDERER") or None, template_options=options)


def _options(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise TemplateError(f"PRORL_TEMPLATE_OPTIONS is no JSON object: {error}") from error
