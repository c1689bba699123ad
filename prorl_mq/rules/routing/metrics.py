"""The load that vLLM's metrics tell, from the few lines that say it. Source: its `GET /metrics`, of 0.32 and earlier.

A server with several engines (data parallel) has a line for each: requests and tokens are added up, of usage the mean
is taken.
"""

import math
import re
from collections.abc import Iterable
from typing import Final

from prorl_mq.rules.routing.room import EngineLoad

USAGE, RUNNING, WAITING = "vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting"
PREEMPTED, CACHE = "vllm:num_preemptions_total", "vllm:cache_config_info"
STARTS: Final = tuple(f"{name}{end}".encode() for name in (USAGE, RUNNING, WAITING, PREEMPTED, CACHE) for end in "{ ")
MOST: Final = 1e15  # of any of these numbers: what is beyond is none of a server's
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


def load(lines: Iterable[bytes], at_ms: float) -> EngineLoad | None:
    """The load at a moment, of lines that begin with `STARTS`. None for metrics that do not tell all of it."""
    found: dict[str, list[float]] = {}
    capacity = 0
    try:
        for line in lines:
            named, _, value = line.decode().rpartition(" ")
            name, _, labels = named.partition("{")
            found.setdefault(name, []).append(_number(value))
            if name == CACHE:
                capacity += _tokens(dict(_LABEL.findall(labels)))
    except (ValueError, OverflowError):
        return None
    if capacity <= 0 or not {USAGE, RUNNING, WAITING, PREEMPTED} <= found.keys():
        return None
    usage = sum(found[USAGE]) / len(found[USAGE])
    return EngineLoad(at_ms, capacity, usage, *(int(sum(found[name])) for name in (RUNNING, WAITING, PREEMPTED)))


def _number(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0 <= value <= MOST):
        raise ValueError(text)
    return value


def _tokens(about: dict[str, str]) -> int:
    """Tokens that the cache of one engine has room for. Blocks of a hybrid model hold fewer than they say."""
    known = about.get("kv_cache_size_tokens", "None")
    if known != "None":
        return int(_number(known))
    return int(_number(about.get("num_gpu_blocks", ""))) * int(_number(about.get("block_size", "")))
