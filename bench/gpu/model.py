"""A Qwen2 model in plain torch with one cache row a slot: each row of a batch has its own place in its own text.

The weights are random, from a fixed seed. `python -m bench.gpu.compare` shows that it computes what transformers does.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

THETA: Final = 1_000_000.0
EPSILON: Final = 1e-6


class Shape(NamedTuple):
    """Sizes of the architecture. The embedding is the output matrix, too, as in the small models of the family."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int


SHAPES: Final[Mapping[str, Shape]] = {
    "1.5b": Shape(28, 1536, 12, 2, 128, 8960, 151_936),
    "0.5b": Shape(24, 896, 14, 2, 64, 4864, 151_936),
    "tiny": Shape(2, 64, 4, 2, 16, 128, 1024),
}


class Layer(NamedTuple):
    """Weights of one layer. `qkv` and `up` are several matrices of the architecture in one."""

    norm_in: Tensor
    qkv: Tensor
    bias: Tensor
    out: Tensor
    norm_mid: Tensor
    up: Tensor  # gate, then up
    down: Tensor


class Qwen2:
    """Weights and cache. The cache has `context` places a slot, and one more that padding is written to."""

    def __init__(self, shape: Shape, slots: int, context: int, device: str, dtype: torch.dtype) -> None:
        self.shape, self.slots, self.context = shape, slots, context
        random = torch.Generator(device).manual_seed(0)

        def matrix(rows: int, columns: int) -> Tensor:
            made = torch.empty(rows, columns, device=device, dtype=torch.float32)
            return made.normal_(0.0, 0.02, generator=random).to(dtype)

        def ones() -> Tensor:
            return torch.ones(shape.hidden, device=device, dtype=dtype)

        heads, wide = (shape.heads + 2 * shape.kv_heads) * shape.head, shape.heads * shape.head
        self.embedding = matrix(shape.vocabulary, shape.hidden)
        self.layers = [
            Layer(
                ones(), matrix(heads, shape.hidden), matrix(1, heads)[0], matrix(shape.hidden, wide),
                ones(), matrix(2 * shape.inner, shape.hidden), matrix(shape.hidden, shape.inner),
            )
            for _ in range(shape.layers)
        ]  # fmt: skip
        self.norm = ones()
        places = (shape.layers, slots, shape.kv_heads, context + 1, shape.head)
        self.keys = torch.zeros(places, device=device, dtype=dtype)
        self.values = torch.zeros(places, device=device, dtype=dtype)
        steps = torch.arange(0, shape.head, 2, device=device, dtype=torch.float32) / shape.head
        angles = torch.outer(torch.arange(context + 1, device=device, dtype=torch.float32), THETA**-steps)
        angles = torch.cat((angles, angles), dim=-1)
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    @property
    def parameters(self) -> int:
        layers = sum(weight.numel() for layer in self.layers for weight in layer)
        return layers + self.embedding.numel() + self.norm.numel()

    def hidden(self, ids: Tensor, places: Tensor, rows: Tensor, seen: int, *, first: bool) -> Tensor:
        """Hidden states (n, length, hidden) of ids (n, length) at their places in the texts of slots `rows` (n).

        Keys and values go into the cache; each id sees the places up to its own, of the first `seen`. `first`: rows are
        0 to n - 1, so that the cache is read where it lies.
        """
        n, length = ids.shape
        shape, group = self.shape, self.shape.heads // self.shape.kv_heads
        x = F.embedding(ids, self.embedding)
        cos, sin = self.cos[places][:, :, None], self.sin[places][:, :, None]
        mask = torch.arange(seen, device=ids.device) <= places[:, :, None]
        mask = mask[:, None, None].expand(n, 1, group, length, seen).reshape(n, 1, group * length, seen)
        for number, layer in enumerate(self.layers):
            normed = F.rms_norm(x, (shape.hidden,), layer.norm_in, EPSILON)
            qkv = F.linear(normed, layer.qkv, layer.bias).view(n, length, -1, shape.head)
            q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=2)
            q, k = _turned(q, cos, sin), _turned(k, cos, sin)
            keys, values = self.keys[number], self.values[number]
            keys[rows[:, None], :, places] = k
            values[rows[:, None], :, places] = v
            mine = (keys[:n], values[:n]) if first else (keys[rows], values[rows])
            # the heads of a group share keys: they stand as further queries, and no key is repeated in memory
            q = q.view(n, length, shape.kv_heads, group, shape.head).permute(0, 2, 3, 1, 4)
            q = q.reshape(n, shape.kv_heads, group * length, shape.head)
            seen_by = F.scaled_dot_product_attention(q, mine[0][:, :, :seen], mine[1][:, :, :seen], attn_mask=mask)
            seen_by = seen_by.view(n, shape.kv_heads, group, length, shape.head).permute(0, 3, 1, 2, 4)
            x = x + F.linear(seen_by.reshape(n, length, -1), layer.out)
            normed = F.rms_norm(x, (shape.hidden,), layer.norm_mid, EPSILON)
            gate, up = F.linear(normed, layer.up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return F.rms_norm(x, (shape.hidden,), self.norm, EPSILON)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of the last dimension; in 32 bits."""
        return F.linear(hidden, self.embedding).float()


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def choose(logits: Tensor, forced: Tensor, temperature: Tensor, greedy: Tensor) -> tuple[Tensor, Tensor]:
    """An id a row and its log-probability. Every row is sampled; where `forced` is an id (not -1), that one is taken in
    its place, with the log-probability that the model gives it. A greedy row has one candidate: 0.
    """
    scaled = logits / temperature[:, None]
    logprobs = scaled.log_softmax(dim=-1)
    noise = torch.empty_like(logprobs).exponential_().log_()
    ids = torch.where(greedy, logits.argmax(dim=-1), (logprobs - noise).argmax(dim=-1))
    ids = torch.where(forced >= 0, forced, ids)
    taken = logprobs.gather(1, ids[:, None])[:, 0]
    return ids, torch.where(greedy & (forced < 0), torch.zeros_like(taken), taken)
