"""The numbers of one worker process. docs/reference/metrics.md is their table."""

from collections import deque
from functools import lru_cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from workers.inference.protocol import Completion

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

STAGE_S: Final = (0.01, 0.05, 0.2, 1, 5, 20, 60, 300, 1200, 3600)
STOP_S: Final = (0.01, 0.05, 0.2, 0.5, 1, 2, 5, 15, 60)
LLM_S: Final = (0.05, 0.2, 0.5, 1, 2, 5, 15, 60, 300)
REWARDS: Final = (-1, -0.5, 0, 0.1, 0.25, 0.5, 0.75, 0.9, 1, 2, 10)
TOKENS: Final = (64, 256, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072)
TURNS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
VERSIONS: Final = (0, 1, 2, 3, 4, 6, 8, 16)

stage_seconds = Histogram(
    "prorl_stage_seconds", "From claim to decision.", ["stage"], buckets=STAGE_S, registry=REGISTRY
)
refused = Counter("prorl_duplicate_commits_rejected", "Commits that the fence refused.", ["answer"], registry=REGISTRY)
diverted = Counter(
    "prorl_worker_diverted", "Jobs read and put on the lane of a task family that this worker lacks.", registry=REGISTRY
)
resumed = Counter("prorl_rollouts_resumed", "Rollouts that continued where an attempt had ended.", registry=REGISTRY)
rebuilt = Counter(
    "prorl_sandboxes_rebuilt", "New sandboxes in which the calls of a rollout were made again.", registry=REGISTRY
)
restored = Counter("prorl_sandboxes_restored", "New sandboxes that began with a checkpoint.", registry=REGISTRY)
copied = Counter("prorl_sandboxes_copied", "New sandboxes that are copies of living ones.", registry=REGISTRY)
unsaved = Counter(
    "prorl_checkpoints_unsaved",
    "Checkpoints of a sandbox that were not kept: too large, not whole, or without room.",
    registry=REGISTRY,
)
checkpoint_bytes = Counter("prorl_checkpoint_bytes", "Bytes of kept checkpoints.", ["place"], registry=REGISTRY)
kept_turns = Counter("prorl_turns_kept", "Turns of earlier attempts that were not made again.", registry=REGISTRY)
unlogged = Counter("prorl_rollouts_unlogged", "Rollouts whose log Redis had no room for.", registry=REGISTRY)
payload_bytes = Counter("prorl_payload_bytes", "Bytes of stored payloads.", ["place"], registry=REGISTRY)
payload_faults = Counter(
    "prorl_payload_faults", "Payloads that went to Redis since no file could be written.", registry=REGISTRY
)
leases_lost = Counter("prorl_leases_lost", "Jobs stopped because their lease was gone.", registry=REGISTRY)
repairs = Counter(
    "prorl_worker_repairs", "Differences between slots, tasks and leases, put right.", ["kind"], registry=REGISTRY
)
free_slots = Gauge("prorl_worker_free_slots", "Places for jobs that are free.", registry=REGISTRY)
read_age_seconds = Gauge(
    "prorl_worker_read_age_seconds", "Since its last read was answered, while places are free.", registry=REGISTRY
)
node_shut = Gauge("prorl_node_shut", "1 while this node starts no sandbox and takes no jobs.", registry=REGISTRY)
cancel_stop_seconds = Histogram(
    "prorl_cancel_stop_seconds", "From being told to stop to all dead.", buckets=STOP_S, registry=REGISTRY
)
image_fetches = Counter("prorl_image_fetches", "Images that this process fetched.", ["result"], registry=REGISTRY)
image_fetched_bytes = Counter("prorl_image_fetched_bytes", "Bytes received of images.", registry=REGISTRY)
image_waiting_jobs = Gauge(
    "prorl_image_waiting_jobs", "Jobs that this process put aside because their image is not there.", registry=REGISTRY
)
sandbox_start_seconds = Histogram(
    "prorl_sandbox_start_seconds", "Until a handler had its sandbox.", buckets=STAGE_S, registry=REGISTRY
)
llm_request_seconds = Histogram(
    "prorl_llm_request_seconds", "One answered request to a backend.", ["backend"], buckets=LLM_S, registry=REGISTRY
)
room_seconds = Histogram(
    "prorl_room_wait_seconds", "Waits of turns for room in the caches of a pool.", buckets=STAGE_S, registry=REGISTRY
)
llm_failures = Counter("prorl_llm_failures", "Requests that a backend failed.", ["backend"], registry=REGISTRY)
llm_prompt_tokens = Counter("prorl_llm_prompt_tokens", "Tokens of prompts sent.", registry=REGISTRY)
llm_cached_tokens = Counter("prorl_llm_cached_tokens", "Those of them that were in a cache.", registry=REGISTRY)
llm_sampled_tokens = Counter("prorl_llm_sampled_tokens", "Tokens sampled.", registry=REGISTRY)
staleness_versions = Histogram(
    "prorl_staleness_versions", "Versions announced since a turn's first token.", buckets=VERSIONS, registry=REGISTRY
)
prefix_breaks = Counter(
    "prorl_token_contiguity_violations", "Prompts that broke with the one before, unasked.", registry=REGISTRY
)
tool_calls = Counter("prorl_tool_calls", "Calls of tools, by how they went.", ["result"], registry=REGISTRY)
rewards = Histogram("prorl_reward", "Rewards that EVAL gave.", ["data_source"], buckets=REWARDS, registry=REGISTRY)
sample_tokens = Histogram(
    "prorl_sample_tokens", "Sampled tokens of a scored sample.", ["data_source"], buckets=TOKENS, registry=REGISTRY
)
sample_turns = Histogram(
    "prorl_sample_turns", "Turns of a scored sample.", ["data_source"], buckets=TURNS, registry=REGISTRY
)
forks = Counter("prorl_trajectory_forks", "Segments of trajectories beyond the first.", registry=REGISTRY)


# What alerts count is there from the start, so that its first time is a rise from 0.
for _counter, _values in ((refused, ("stale", "gone")), (image_fetches, ("fetched", "failed"))):
    for _value in _values:
        _counter.labels(_value)


def stored(size: int, *, in_file: bool, fault: bool) -> None:
    """Counts a stored payload."""
    payload_bytes.labels("file" if in_file else "redis").inc(size)
    payload_faults.inc(fault)


def scored(data_source: str, reward: float, tokens: int, turns: int) -> None:
    """Counts a sample that EVAL has scored. There are as many data sources as task families have names."""
    of_reward, of_tokens, of_turns = _of_samples(data_source)
    of_reward.observe(reward)
    of_tokens.observe(tokens)
    of_turns.observe(turns)


def continued(turns: int) -> None:
    """Counts a rollout that continues behind so many turns."""
    resumed.inc()
    kept_turns.inc(turns)


def broken(segments: int, breaks: int) -> None:
    """Counts a trajectory's segments beyond the first and its broken prefixes; most have neither."""
    if segments or breaks:
        forks.inc(segments)
        prefix_breaks.inc(breaks)


@lru_cache
def _of_samples(data_source: str) -> tuple[Histogram, Histogram, Histogram]:
    return rewards.labels(data_source), sample_tokens.labels(data_source), sample_turns.labels(data_source)


class PrefixHits:
    """The share of prompt tokens that backends had cached, over the last 256 requests that told it."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, int]] = deque(maxlen=256)
        gauge = Gauge("prorl_llm_prefix_hit_ratio", "Cached share of the newest prompts.", registry=REGISTRY)
        gauge.set_function(self.ratio)

    def ratio(self) -> float:
        sent = sum(prompt for prompt, _ in self._last)
        return sum(cached for _, cached in self._last) / sent if sent else 0.0

    def add(self, prompt: int, cached: int) -> None:
        self._last.append((prompt, cached))
        llm_prompt_tokens.inc(prompt)
        llm_cached_tokens.inc(cached)


_hits = PrefixHits()


@lru_cache
def _of_calls(address: str) -> Histogram:
    return llm_request_seconds.labels(address)


def answered(address: str, completion: Completion) -> None:
    """One answer of a backend. A prompt counts where the backend says how much of it was cached."""
    _of_calls(address).observe(completion.seconds)
    llm_sampled_tokens.inc(len(completion.ids))
    if completion.prompt_tokens and completion.cached_tokens is not None:
        _hits.add(completion.prompt_tokens, completion.cached_tokens)
