"""Sampling parameters as requests carry them: every one, whatever its value.

A server fills a parameter that a request leaves out from the model's own `generation_config.json`, on some routes: a
repetition penalty of 1.1 there would change the distribution that is sampled from, and nothing would say so.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from workers.inference.request import GenerateRequest


class NeutralFields(msgspec.Struct, kw_only=True):
    """Parameters that change the distribution and that no rollout asks for, at the values which change nothing."""

    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class SamplingFields(NeutralFields, kw_only=True):
    """Parameters as vLLM and its followers read them. Nothing is omitted but a seed that was not asked for."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int  # 0: off
    stop_token_ids: Sequence[int]
    seed: int | UnsetType = UNSET


def sampling_fields(request: GenerateRequest) -> dict[str, Any]:
    """The fields of `SamplingFields` for a request."""
    return {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": max(request.top_k, 0),
        "stop_token_ids": request.stop_token_ids,
        "seed": UNSET if request.seed is None else request.seed,
    }
