"""Tells of which distribution a backend's log-probabilities are, and whether a request samples from that one.

A trainer divides probabilities by these. Where they are of another distribution than the tokens were drawn from, every
importance ratio is wrong, and nothing shows it. So they are refused, or used because the batch asks for it and marked.
"""

from enum import StrEnum
from typing import Protocol

import msgspec

from workers.inference.protocol import Completion, InferenceError


class LogprobMode(StrEnum):
    """Extent to which sampling parameters have entered a backend's log-probabilities."""

    PROCESSED = "processed"  # wholly: they are of the distribution sampled from
    SCALED = "scaled"  # by the temperature, and not by top-p and top-k
    RAW = "raw"  # not at all: they are the model's own


class Parameters(Protocol):
    """Those that decide; of a batch or of one request."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...


class LogprobsRefused(InferenceError):
    """Every backend of the pool gives log-probabilities of another distribution than the batch samples from."""

    retryable = False


_OF: dict[LogprobMode, str] = {
    LogprobMode.SCALED: "of the whole vocabulary, without top-p and top-k",
    LogprobMode.RAW: "raw: without temperature, top-p and top-k",
}
_FIX: dict[LogprobMode, str] = {
    LogprobMode.SCALED: "sample with top_p 1 and top_k -1",
    LogprobMode.RAW: (
        "start vLLM with --logprobs-mode processed_logprobs, SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB, or sample "
        "with temperature 1, top_p 1 and top_k -1"
    ),
}


def exact(mode: LogprobMode, asked: Parameters) -> bool:
    """True if log-probabilities of this mode are of the distribution that a request samples from.

    At temperature 0 nothing is drawn, and the log-probabilities are the model's own whatever the mode.
    """
    if mode is LogprobMode.PROCESSED or asked.temperature == 0:
        return True
    whole = asked.top_p == 1 and asked.top_k <= 0
    return whole and (mode is LogprobMode.SCALED or asked.temperature == 1)


def told(mode: LogprobMode) -> str:
    """The fault of log-probabilities of a mode, for those who look at a backend; empty where there is none."""
    return "" if mode is LogprobMode.PROCESSED else f"its log-probabilities are {_OF[mode]}; {_FIX[mode]}"


def refusal(address: str, mode: LogprobMode, asked: Parameters) -> LogprobsRefused:
    """The error for a batch that did not ask for such log-probabilities."""
    drawn = f"temperature {asked.temperature:g}, top_p {asked.top_p:g} and top_k {asked.top_k}"
    return LogprobsRefused(
        f"backend {address}: its log-probabilities are {_OF[mode]}, and the batch samples with {drawn}: importance "
        f"ratios from them would be wrong; {_FIX[mode]}, or take them as they are with sampling.raw_logprobs"
    )


def marked(completion: Completion) -> Completion:
    """The completion with each of its spans marked."""
    spans = [msgspec.structs.replace(span, raw_logprobs=True) for span in completion.spans]
    return msgspec.structs.replace(completion, spans=spans)
