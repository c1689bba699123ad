"""Batched steps of the model: texts read ahead of their first token, then one token a step for every running slot.

On a GPU a step is a CUDA graph, captured for some numbers of rows and of places before the first request.
"""

import time
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from bench.gpu.engine import Row
from bench.gpu.model import Qwen2, choose

ROWS: Final = (1, 4, 16, 32, 64, 96, 128, 192, 256)
PLACES_STEP: Final = 1024


class Stepper:
    """Turns rows into the next id of each and its log-probability."""

    def __init__(self, model: Qwen2) -> None:
        self.model = model
        self.device = model.embedding.device
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._rows = torch.arange(model.slots, device=self.device)
        self._ids = torch.zeros(model.slots, dtype=torch.long, device=self.device)
        self._places = torch.full_like(self._ids, model.context)
        self._forced = torch.full_like(self._ids, -1)
        self._temperature = torch.ones(model.slots, device=self.device)
        self._greedy = torch.zeros(model.slots, dtype=torch.bool, device=self.device)
        self._out: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    @torch.inference_mode()
    def capture(self) -> float:
        """Captures every graph, on a GPU alone. Returns the seconds that it took."""
        began = time.perf_counter()
        if self.device.type == "cuda":
            pool = None
            for rows in sorted({min(rows, self.model.slots) for rows in ROWS}, reverse=True):
                for seen in range(self._seen(self.model.context - 1), 0, -PLACES_STEP):
                    with torch.cuda.stream(torch.cuda.Stream()):
                        self._step(rows, seen)
                    torch.cuda.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, pool=pool):
                        self._out[rows, seen] = self._step(rows, seen)
                    pool = pool or graph.pool()
                    self._graphs[rows, seen] = graph
        return time.perf_counter() - began

    @torch.inference_mode()
    def read(self, batch: Sequence[Row]) -> list[tuple[int, float]]:
        """Reads the new ids of each row, padded to the longest, and chooses the id behind them."""
        longest, context = max(len(row.ids) for row in batch), self.model.context
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        places = torch.full((len(batch), longest), context)
        for number, row in enumerate(batch):
            ids[number, : len(row.ids)] = torch.tensor(row.ids)
            places[number, : len(row.ids)] = torch.arange(row.place, row.place + len(row.ids))
        rows = torch.tensor([row.slot for row in batch], device=self.device)
        seen = min(-(-max(row.place + len(row.ids) for row in batch) // 64) * 64, context)
        hidden = self.model.hidden(ids.to(self.device), places.to(self.device), rows, seen, first=False)
        last = torch.tensor([len(row.ids) - 1 for row in batch], device=self.device)
        logits = self.model.logits(hidden[torch.arange(len(batch), device=self.device), last])
        forced = torch.tensor([row.forced for row in batch], device=self.device)
        temperature = torch.tensor([row.temperature for row in batch], device=self.device)
        greedy = torch.tensor([row.greedy for row in batch], device=self.device)
        return _told(*choose(logits, forced, temperature, greedy))

    @torch.inference_mode()
    def step(self, batch: Sequence[Row]) -> list[tuple[int, float]]:
        """One id more for each row. Slots that are not in the batch are computed with it and change nothing."""
        count, context = max(row.slot for row in batch) + 1, self.model.context
        rows = min(next((rows for rows in ROWS if rows >= count), self.model.slots), self.model.slots)
        ids, places, forced = [0] * rows, [context] * rows, [-1] * rows
        temperature, greedy = [1.0] * rows, [False] * rows
        for row in batch:
            ids[row.slot], places[row.slot], forced[row.slot] = row.ids[0], row.place, row.forced
            temperature[row.slot], greedy[row.slot] = row.temperature, row.greedy
        for static, values in (
            (self._ids, ids), (self._places, places), (self._forced, forced), (self._temperature, temperature),
            (self._greedy, greedy),
        ):  # fmt: skip
            static[:rows].copy_(torch.tensor(values, dtype=static.dtype))
        seen = self._seen(max(row.place for row in batch))
        graph = self._graphs.get((rows, seen))
        if graph is None:
            out = self._step(rows, seen)
        else:
            graph.replay()
            out = self._out[rows, seen]
        told = _told(*out)
        return [told[row.slot] for row in batch]

    def _step(self, rows: int, seen: int) -> tuple[Tensor, Tensor]:
        hidden = self.model.hidden(
            self._ids[:rows, None], self._places[:rows, None], self._rows[:rows], seen, first=True
        )
        return choose(
            self.model.logits(hidden[:, 0]), self._forced[:rows], self._temperature[:rows], self._greedy[:rows]
        )

    def _seen(self, place: int) -> int:
        """The number of places that a step reads which writes at `place`."""
        return min((place // PLACES_STEP + 1) * PLACES_STEP, self.model.context)


def _told(ids: Tensor, logprobs: Tensor) -> list[tuple[int, float]]:
    return list(zip(ids.tolist(), logprobs.tolist(), strict=True))
