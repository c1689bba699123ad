"""DAPO in plain torch: the clipped policy gradient of arXiv 2503.14476, on the ids and log-probabilities given to it.

    python -m examples.train.learner

A program of its own, so that only it needs torch. Reads a JSON request a line, answers each with a line:

    {"load": DIR, "seed": n}   starts again from these weights
    {"learn": [SAMPLE, ...]}   one update; SAMPLE: prompt_ids, response_ids, loss_mask, logprobs, advantage, version
    {"save": DIR, "version": v}  the weights as backends load them

An importance ratio is that of the weights now to those that sampled the token, whose log-probability came with it. A
sample's `version` is the one that sampled all of it, if one did. With that version's weights the log-probabilities must
come out again: `max_difference` says how far off they are. Inserted tokens (mask 0) take part in nothing.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.func import functional_call
from transformers import AutoModelForCausalLM

RATE, BETAS = 2e-4, (0.9, 0.95)
CLIP_LOW, CLIP_HIGH = 0.2, 0.28  # DAPO's clip-higher
EPOCHS, MINIBATCHES = 2, 2
REMEMBERED = 6  # versions: small weights are kept as they were, to compare with
Sample = dict[str, Any]


class Batch:
    """Samples as tensors of one shape, (samples, tokens - 1): each place is about the token that follows it."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.ids = _padded([[*each["prompt_ids"], *each["response_ids"]] for each in samples])
        self.attended = _padded([[1] * (len(each["prompt_ids"]) + len(each["response_ids"])) for each in samples])
        self.mask = _aligned(samples, "loss_mask").bool()
        self.sampled_at = _aligned(samples, "logprobs")
        self.advantages = torch.tensor([[each["advantage"]] for each in samples], dtype=torch.float32)

    def logprobs(self, model: Any, weights: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Of each token, at temperature 1, by the model's own weights or by others."""
        given = {"input_ids": self.ids, "attention_mask": self.attended}
        logits = functional_call(model, dict(weights or {}), (), given).logits[:, :-1].float()
        return torch.log_softmax(logits, dim=-1).gather(2, self.ids[:, 1:, None])[:, :, 0]


class Learner:
    """The policy and its optimizer."""

    def load(self, directory: str, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=BETAS, weight_decay=0.0)
        self.served: dict[str, dict[str, torch.Tensor]] = {}
        return {"parameters": sum(weight.numel() for weight in self.model.parameters())}

    def save(self, directory: str, version: str) -> dict[str, Any]:
        self.model.save_pretrained(directory)
        self.served[version] = {name: weight.clone() for name, weight in self.model.state_dict().items()}
        if len(self.served) > REMEMBERED:
            del self.served[next(iter(self.served))]
        return {}

    def learn(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Several passes over the samples, in minibatches by chance."""
        difference, compared = self._difference(samples)
        clipped = tokens = 0
        for _ in range(EPOCHS):
            for places in torch.randperm(len(samples)).chunk(MINIBATCHES):
                batch = Batch([samples[place] for place in places.tolist()])
                clipped += self._update(batch)
                tokens += int(batch.mask.sum())
        return {"max_difference": difference, "compared_tokens": compared, "clipped": clipped / tokens}

    @torch.no_grad()
    def _difference(self, samples: Sequence[Sample]) -> tuple[float, int]:
        """Between rollout and recomputation with the same weights: the largest, and of how many tokens."""
        largest, compared = torch.tensor(0.0), 0
        for version, weights in self.served.items():
            theirs = [each for each in samples if each["version"] == version]
            if theirs:
                batch = Batch(theirs)
                scored = batch.logprobs(self.model, weights)
                apart = (scored - batch.sampled_at).abs()[batch.mask]
                largest, compared = torch.maximum(largest, apart.max()), compared + len(apart)
        return float(largest), compared

    def _update(self, batch: Batch) -> int:
        """One step of the optimizer; how many tokens' ratios were clipped. Each token of the batch weighs the same."""
        ratios = (batch.logprobs(self.model) - batch.sampled_at).exp()
        kept = ratios.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
        gains = torch.minimum(ratios * batch.advantages, kept * batch.advantages)[batch.mask]
        self.optimizer.zero_grad()
        (-gains.mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return int((ratios != kept)[batch.mask].sum())


def _padded(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def _aligned(samples: Sequence[Sample], name: str) -> torch.Tensor:
    """Values of response tokens; what stands for prompt tokens is nothing. A null is one of an inserted token."""
    return _padded(
        [
            [*[0.0] * (len(each["prompt_ids"]) - 1), *(0.0 if value is None else float(value) for value in each[name])]
            for each in samples
        ]
    )


def main() -> None:
    torch.set_num_threads(1)
    learner = Learner()
    for line in sys.stdin:
        match json.loads(line):
            case {"load": directory, "seed": seed}:
                answer = learner.load(directory, seed)
            case {"learn": samples}:
                answer = learner.learn(samples)
            case {"save": directory, "version": version}:
                answer = learner.save(directory, version)
            case request:
                raise SystemExit(f"no request: {str(request)[:200]}")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
