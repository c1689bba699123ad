"""A Transformers forward pass beside vLLM, for the log-probabilities that it should have given."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prorl_mq.trajectory import Segment, Trajectory

TOLERANCE = 1e-4


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

    def score(
        self, ids: Sequence[int], start: int, weights: Sequence[tuple[int, Path]], temperature: float
    ) -> list[float]:
        """Log-probabilities of `ids[start:]`; `weights` as the program has them."""
        told = [(end, str(directory)) for end, directory in weights]
        asked = {"ids": list(ids), "start": start, "weights": told, "temperature": temperature}
        answer: list[float] = self._ask(asked)
        return answer

    def error(self, trajectory: Trajectory, weights: Path) -> float:
        """The largest difference of any sampled token's log-probability, when one set of weights sampled all."""
        return max(self.segment_error(segment, weights, trajectory.temperature) for segment in trajectory.segments)

    def segment_error(self, segment: Segment, weights: Path, temperature: float) -> float:
        ids = [*segment.prompt_ids, *segment.response_ids]
        scored = self.score(ids, len(segment.prompt_ids), [(len(ids), weights)], temperature)
        return worst(segment.logprobs, scored)

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the scorer ended with {self._process.wait(60)}"
        return json.loads(answer)


def worst(told: Sequence[float | None], scored: Sequence[float]) -> float:
    """The largest difference; tokens that were not sampled have none."""
    return max(abs(one - two) for one, two in zip(told, scored, strict=True) if one is not None)
