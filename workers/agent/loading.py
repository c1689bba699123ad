"""Loads the policy's renderer: once per process, off the event loop."""

import asyncio
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.process import tokenizers
from prorl_mq.schema.faults import Cause
from workers.agent.renderer import Renderer
from workers.agent.template import TemplateError


class NoTokenizer(TemplateError):
    """A RUN worker was started without one."""

    cause = Cause.NODE


_cache: dict[tuple[str, str, str | None], Renderer] = {}
_loading = threading.Lock()


def _load(directory: Path, options: Mapping[str, Any] | None, family: str | None) -> Renderer:
    key = (str(directory.resolve()), repr(sorted((options or {}).items())), family)
    with _loading:
        if key not in _cache:
            os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it misses PyTorch, and we do not
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
            _cache[key] = Renderer(tokenizer, directory.name, options, family, _model_type(directory))
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
    return await asyncio.to_thread(_load, directory, options, family)


async def policy_renderer() -> Renderer:
    """The renderer of the policy that this worker drives.

    PRORL_TOKENIZER names its tokenizer's directory, PRORL_RENDERER a family if the template's own is not meant, and
    PRORL_TEMPLATE_OPTIONS is a JSON object of the template's options, such as `{"enable_thinking": false}`.
    """
    directory = os.environ.get("PRORL_TOKENIZER")
    if not directory:
        raise NoTokenizer(
            "no tokenizer is configured: start the RUN worker with --tokenizer DIR, the directory that holds the "
            "policy's tokenizer.json and chat template (or set PRORL_TOKENIZER)"
        )
    options = _options(os.environ.get("PRORL_TEMPLATE_OPTIONS") or "{}")
    return await load_renderer(Path(directory), options, os.environ.get("PRORL_RENDERER") or None)


async def usable_renderer() -> Renderer:
    """The policy's renderer, before any job needs it. Raises `ConfigurationError` in one line, with what to do."""
    directory = os.environ.get("PRORL_TOKENIZER")
    try:
        return await policy_renderer()
    except TemplateError as error:
        raise ConfigurationError(f"--tokenizer {directory}: {error}") from error
    except (OSError, ValueError, KeyError) as error:  # of the tokenizer's library
        said = str(error).strip().partition("\n")[0]
        raise ConfigurationError(f"--tokenizer {directory} cannot be loaded ({said}); {tokenizers.FIX}") from error


async def load_ahead() -> None:
    """Loads the policy's renderer where one is configured. What fails here is raised to whoever asks for it."""
    if os.environ.get("PRORL_TOKENIZER"):
        with suppress(Exception):
            await policy_renderer()


def _options(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise TemplateError(f"PRORL_TEMPLATE_OPTIONS is no JSON object: {error}") from error
