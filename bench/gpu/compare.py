"""python -m bench.gpu.compare: the model beside transformers' Qwen2, and a batch beside one text at a time.

The same random weights in both, in 32 bits, on a CPU: one text, texts that continue, and more texts than slots. Exits
with status 1 where something differs. Needs torch and transformers.
"""

import threading

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from bench.gpu.decoding import Stepper
from bench.gpu.engine import Call, Engine
from bench.gpu.model import EPSILON, SHAPES, THETA, Qwen2

SHAPE = SHAPES["tiny"]
CLOSE = 1e-4  # of log-probabilities
SLOTS, CONTEXT = 4, 128


def reference(model: Qwen2) -> Qwen2ForCausalLM:
    """transformers' model with these weights."""
    shape = model.shape
    config = Qwen2Config(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.inner,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        max_position_embeddings=CONTEXT, rms_norm_eps=EPSILON, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
    )  # fmt: skip
    made = Qwen2ForCausalLM(config).eval()
    sizes = (shape.heads * shape.head, shape.kv_heads * shape.head, shape.kv_heads * shape.head)
    weights = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm}
    weights["lm_head.weight"] = model.embedding
    for number, layer in enumerate(model.layers):
        at = f"model.layers.{number}."
        for name, matrix, bias in zip("qkv", layer.qkv.split(sizes), layer.bias.split(sizes), strict=True):
            weights |= {f"{at}self_attn.{name}_proj.weight": matrix, f"{at}self_attn.{name}_proj.bias": bias}
        gate, up = layer.up.chunk(2)
        weights |= {
            f"{at}self_attn.o_proj.weight": layer.out, f"{at}mlp.gate_proj.weight": gate,
            f"{at}mlp.up_proj.weight": up, f"{at}mlp.down_proj.weight": layer.down,
            f"{at}input_layernorm.weight": layer.norm_in, f"{at}post_attention_layernorm.weight": layer.norm_mid,
        }  # fmt: skip
    made.load_state_dict(weights)
    return made


class Waiting:
    """An engine, and calls that are waited for."""

    def __init__(self) -> None:
        self.model = Qwen2(SHAPE, SLOTS, CONTEXT, "cpu", torch.float32)
        self.engine = Engine(Stepper(self.model), SLOTS)
        self.engine.start()

    def calls(self, *asked: tuple[list[int], list[int]]) -> list[Call]:
        """All at once: prompts, and what is said."""
        ended = threading.Semaphore(0)
        calls = [
            Call(request_id=str(number), prompt=prompt, forced=forced, max_tokens=64, done=lambda _: ended.release())
            for number, (prompt, forced) in enumerate(asked)
        ]
        for call in calls:
            self.engine.submit(call)
        for _ in calls:
            assert ended.acquire(timeout=30), f"a call did not end; the engine: {self.engine.failed!r}"
        return calls


def text(seed: int, length: int) -> list[int]:
    return [(seed * 7919 + place * place * 31 + place) % SHAPE.vocabulary for place in range(length)]


def differences(waiting: Waiting) -> dict[str, float]:
    """The largest difference between log-probabilities, by what is compared."""
    told = reference(waiting.model)

    def expected(prompt: list[int], said: list[int]) -> list[float]:
        with torch.inference_mode():
            logprobs = told(torch.tensor([prompt + said])).logits[0].log_softmax(-1)
        return [float(logprobs[len(prompt) - 1 + place, token]) for place, token in enumerate(said)]

    def off(call: Call) -> float:
        assert call.ids == list(call.forced), (call.ids, call.forced)
        assert call.finish == "stop", call.finish
        wanted = expected(list(call.prompt), list(call.forced))
        return max(abs(a - b) for a, b in zip(call.logprobs, wanted, strict=True))

    batch = [(text(seed, 5 + 9 * seed), text(50 + seed, 4 + 3 * seed)) for seed in range(3 * SLOTS - 5)]
    first = waiting.calls((text(90, 20), text(91, 6)))[0]
    longer = [*first.prompt, *first.ids, *text(92, 11)]
    follows = waiting.calls((longer, text(93, 5)), (text(94, 9), text(95, 8)))
    assert follows[0].cached == len(first.prompt) + len(first.ids) - 1, follows[0].cached
    assert follows[1].cached == 0, follows[1].cached
    return {
        "one text": off(first),
        "a text that continues, beside another": max(map(off, follows)),
        f"{len(batch)} texts for {SLOTS} slots": max(map(off, waiting.calls(*batch))),
    }


def main() -> None:
    waiting = Waiting()
    found = differences(waiting)
    # the control: other ids than those whose log-probabilities are asked for differ by far more
    [call] = waiting.calls((text(1, 10), text(2, 5)))
    [other] = waiting.calls((text(3, 10), text(2, 5)))
    control = max(abs(a - b) for a, b in zip(call.logprobs, other.logprobs, strict=True))
    waiting.engine.stop()
    for name, value in found.items():
        print(f"{name}: {value:.1e} from transformers")
    print(f"the control, another prompt: {control:.1e}")
    if max(found.values()) > CLOSE or control < 100 * CLOSE:
        raise SystemExit(f"log-probabilities differ by more than {CLOSE}, or the control does not")


if __name__ == "__main__":
    main()
