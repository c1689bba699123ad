"""A fake backend's mixture of experts: made-up routes, in the forms of vLLM and SGLang.

The forms are those of vLLM 0.32 (`numpy2base64` in `vllm/utils/serial_utils.py`, fields of
`entrypoints/scale_out/token_in_token_out/protocol.py` and `openai/completion/protocol.py`) and of SGLang
(`managers/tokenizer_manager.py`: base64 of int32 numbers without a shape).
"""

import base64
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from prorl_mq.schema.trajectory import RoutedExperts

if TYPE_CHECKING:
    from prorl_mq.testing.wire import FakeCompletion, GenerateCall


class FakeExperts(msgspec.Struct, kw_only=True):
    """The routes of its answers. `flavour` is of its weights: with another one the same tokens go to other experts."""

    of: RoutedExperts
    flavour: int = 0
    fault: str = ""  # missing, zero, unseen (of one token), short, layers, beyond, none of them: as it should be
    asked: list[tuple[int, int]] = []  # of each answer, its first row and the one behind its last

    def numbers(self, ids: Sequence[int], start: int = 0) -> list[int]:
        """Those of all tokens but the last, from row `start` on: no expert twice in a layer of a token."""
        of, found = self.of, list[int]()
        for place in range(start, len(ids) - 1):
            for layer in range(of.layers):
                drawn = zlib.crc32(f"{self.flavour} {place} {ids[place]} {layer}".encode())
                found += [(drawn + each) % of.experts for each in range(of.top_k)]
        return found

    def tell(self, call: "GenerateCall", sampled: "FakeCompletion", answer: dict[str, Any]) -> None:
        """Puts the routes into an answer of vLLM or SGLang."""
        sampling = call.raw.get("sampling_params") or {}
        sglang = "meta_info" in answer
        if (sglang and not call.raw.get("return_routed_experts")) or self.fault == "missing":
            return
        asked = call.raw if sglang or "prompt" in call.raw else sampling
        start = int(asked.get("routed_experts_start_len" if sglang else "routed_experts_prompt_start") or 0)
        ids = [*call.prompt_ids, *sampled.ids]
        self.asked.append((start, len(ids) - 1))
        numbers = self._spoilt(self.numbers(ids, start))
        if sglang:
            answer["meta_info"]["routed_experts"] = _text(numbers, 4)
        else:
            layers = self.of.layers + (self.fault == "layers")
            shape = (len(numbers) // (layers * self.of.top_k), layers, self.of.top_k)
            answer["choices"][0]["routed_experts"] = _text(numbers, self.of.bytes_an_id, shape)

    def _spoilt(self, numbers: list[int]) -> list[int]:
        row = self.of.layers * self.of.top_k
        spoil: dict[str, Callable[[], list[int]]] = {
            "zero": lambda: [0] * len(numbers),
            "unseen": lambda: [0] * row + numbers[row:],
            "short": lambda: numbers[row:],
            "layers": lambda: numbers + numbers[: len(numbers) // row * self.of.top_k],
            "beyond": lambda: [self.of.experts, *numbers[1:]],
        }
        return spoil[self.fault]() if self.fault in spoil else numbers


def _text(numbers: Sequence[int], width: int, shape: Sequence[int] | None = None) -> str:
    """Base64 of the numbers; with a shape, of a `.npy` file of them."""
    data = b"".join(each.to_bytes(width, "little") for each in numbers)
    if shape is not None:
        kind = "|u1" if width == 1 else f"<u{width}"
        head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
        head += " " * (-(len(head) + 11) % 64) + "\n"
        data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + data
    return base64.b64encode(data).decode()
