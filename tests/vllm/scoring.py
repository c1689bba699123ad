"""A Transformers forward pass beside vLLM, for the log-probabilities that it should have given."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prorl_mq.schema.trajectory import Segment, Span, Trajectory

TOLERANCE = 1e-4
Weights = Path | Mapping[str, Path]  # by the version that spans tell


class Scorer:
    """One process of vLLM's interpreter. Asked from one thread."""

    def __init__(self, interpreter: Path) -> None:
        program = str(Path(__file__).with_name("scorer.py"))
        self._process = subprocess.Popen(
            [str(interpreter), program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def vary(self, model: Path, to: Path, seed: int) -> Path:
        """Makes a model of the same shape with other weights."""
        return Path(self._ask({"vary": str(model), "to": str(to), "seed": seed}))

    def adapt(self, model: Path, to: Path, merged: Path, seed: int) -> None:
        """Makes a LoRA adapter of a model in `to`, and in `merged` a model that is both in one."""
        self._ask({"adapt": str(model), "to": str(to), "merged": str(merged), "seed": seed})

    def score(
        self, ids: Sequence[int], start: int, weights: Sequence[tuple[int, Path]], temperature: float
    ) -> list[float]:
        """Log-probabilities of `ids[start:]`; `weights` as the program has them."""
        told = [(end, str(directory)) for end, directory in weights]
        asked = {"ids": list(ids), "start": start, "weights": told, "temperature": temperature}
        answer: list[float] = self._ask(asked)
        return answer

    def error(self, trajectory: Trajectory, weights: Weights, *, carried: bool = False) -> float:
        """The largest difference of any sampled token's log-probability.

        `carried`: new weights continued from the keys and values that old ones left, as in a request that was only held
        up. Else each span's prompt was read again by the weights that sampled the span.
        """
        read = self._carried if carried else self._anew
        return max(read(segment, weights, trajectory.temperature) for segment in trajectory.segments)

    def _anew(self, segment: Segment, weights: Weights, temperature: float) -> float:
        ids, before = [*segment.prompt_ids, *segment.response_ids], len(segment.prompt_ids)
        worst_yet = 0.0
        for span in segment.spans:
            end = before + span.end
            scored = self.score(ids[:end], before + span.start, [(end, sampled_by(span, weights))], temperature)
            worst_yet = max(worst_yet, worst(segment.logprobs[span.start : span.end], scored))
        return worst_yet

    def _carried(self, segment: Segment, weights: Weights, temperature: float) -> float:
        """A span's last token is read by those who sample the next one."""
        ids, before = [*segment.prompt_ids, *segment.response_ids], len(segment.prompt_ids)
        parts = [(before + span.end - 1, sampled_by(span, weights)) for span in segment.spans]
        return worst(segment.logprobs, self.score(ids, before, [*parts[:-1], (len(ids), parts[-1][1])], temperature))

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the scorer ended with {self._process.wait(60)}"
        return json.loads(answer)


def sampled_by(span: Span, weights: Weights) -> Path:
    if isinstance(weights, Path):
        return weights
    assert span.version is not None
    first, last = span.version
    assert first == last, f"{span}: vLLM tells where one version ends and the next begins"
    return weights[first]


def worst(told: Sequence[float | None], scored: Sequence[float]) -> float:
    """The largest difference; tokens that were not sampled have none."""
    return max(abs(one - two) for one, two in zip(told, scored, strict=True) if one is not None)
