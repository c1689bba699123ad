"""Phi-3 and Phi-3.5: text only. Their template closes a conversation that is over with another token."""

from workers.agent.formats.interface import Model
from workers.agent.formats.turns import TurnFormat


class Phi3(TurnFormat):
    """Phi-3's turns, which end with `<|end|>`."""

    name = "phi3"
    ends = ("<|end|>",)
    stops = ("<|end|>", "<|endoftext|>")

    @classmethod
    def fits(cls, model: Model) -> bool:
        return model.shows("<|user|>", "<|assistant|>", "<|end|>", "{% else %}{{ eos_token }}")
