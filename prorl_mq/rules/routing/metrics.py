"""The load that vLLM's metrics tell, from the few lines that say it. Source: its `GET /metrics`, of 0.32 and earlier.

A server with several engines (data parallel) has a line for each: requests and tokens are added up, of usage the mean
is taken.
"""

import math
import re
from collections.abc import Iterable
from typing import Final

from prorl_mq.rules.routing import pressure
from prorl_mq.rules.routing.pressure import EngineLoad

USAGE, RUNNING, WAITING = "vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting"
PREEMPTED, CACHE = "vllm:num_preemptions_total", "vllm:cache_config_info"
_STARTS: Final = tuple(f"{name}{end}".encode() for name in (USAGE, RUNNING, WAITING, PREEMPTED, CACHE) for end in "{ ")
MOST: Final = 1e15  # of any of these numbers: what is beyond is none of a server's
LINE_BYTES: Final = 4_096  # of one line: a longer one is left out
_SIZE, _BLOCKS, _BLOCK = (
    re.compile(rf'(?:^|,){label}="([^"]*)"') for label in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
)


def load(lines: Iterable[bytes], at_ms: float) -> EngineLoad | None:
    """The load at a moment, of lines that `keeps` lets through. None for metrics that do not tell all of it."""
    found: dict[str, list[float]] = {}
    capacity = 0
    try:
        for line in lines:
            named, _, value = line.decode().rpartition(" ")
            name, _, labels = named.partition("{")
            found.setdefault(name, []).append(_number(value))
            if name == CACHE:
                capacity += _tokens(labels)
    except (ValueError, OverflowError):
        return None
    if not 0 < capacity <= pressure.MOST or not {USAGE, RUNNING, WAITING, PREEMPTED} <= found.keys():
        return None
    if max(found[USAGE]) > 1:  # a percentage, say, or a line that ends with its time
        return None
    usage = sum(found[USAGE]) / len(found[USAGE])
    return EngineLoad(at_ms, capacity, usage, *(int(sum(found[name])) for name in (RUNNING, WAITING, PREEMPTED)))


def _number(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0 <= value <= MOST):
        raise ValueError(text)
    return value


def keeps(line: bytes) -> bool:
    """True for a line of metrics that `load` is to read."""
    return line.startswith(_STARTS) and len(line) <= LINE_BYTES


def _tokens(labels: str) -> int:
    """Tokens that the cache of one engine has room for. Blocks of a hybrid model hold fewer than they say."""
    if (known := _label(_SIZE, labels)) != "None":
        return int(_number(known))
    return int(_number(_label(_BLOCKS, labels))) * int(_number(_label(_BLOCK, labels)))


def _label(named: re.Pattern[str], labels: str) -> str:
    found = named.search(labels)
    return found[1] if found else "None"
