"""Scores token ids with a Transformers forward pass: a program of its own, since torch lives in vLLM's environment.

Reads one JSON request a line and answers each with one line:

    {"weights": [[end, DIR], ...], "ids": [...], "start": n, "temperature": T}  the log-probabilities of ids[start:]
    {"vary": DIR, "to": DIR, "seed": n}                                         a model of its shape with other weights
    {"adapt": DIR, "to": DIR, "merged": DIR, "seed": n}                         a LoRA adapter of it, and both in one

The tokens before `end` run through the weights of DIR, those that follow through the next ones, over the keys and
values that the earlier weights left: so a turn looks whose weights were swapped in its middle.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

torch.set_num_threads(1)


@cache
def model(directory: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


@torch.no_grad()
def score(asked: dict[str, Any]) -> list[float]:
    ids, start = torch.tensor(asked["ids"]), asked["start"]
    begin, past, logits = 0, None, []
    for end, directory in asked["weights"]:
        if end > begin:
            out = model(directory)(ids[None, begin:end], past_key_values=past, use_cache=True)
            past = out.past_key_values
            logits.append(out.logits[0])
        begin = end
    logprobs = torch.log_softmax(torch.cat(logits).double() / asked["temperature"], dim=-1)
    return logprobs[start - 1 : -1].gather(1, ids[start:, None])[:, 0].tolist()


def vary(asked: dict[str, Any]) -> str:
    torch.manual_seed(asked["seed"])
    made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(asked["vary"]), dtype=torch.float32)
    made.save_pretrained(asked["to"])
    return asked["to"]


@torch.no_grad()
def adapt(asked: dict[str, Any]) -> str:
    torch.manual_seed(asked["seed"])
    made = AutoModelForCausalLM.from_pretrained(asked["adapt"], dtype=torch.float32)
    tensors: dict[str, Any] = {}
    rank, alpha = 4, 8
    for name, module in made.named_modules():
        if name.endswith(("q_proj", "v_proj")):
            down, up = torch.randn(rank, module.in_features) / 4, torch.randn(module.out_features, rank) / 4
            tensors |= {f"base_model.model.{name}.lora_{key}.weight": value for key, value in (("A", down), ("B", up))}
            module.weight += alpha / rank * up @ down
    made.save_pretrained(asked["merged"])
    to = Path(asked["to"])
    to.mkdir(parents=True)
    about = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (to / "adapter_config.json").write_text(json.dumps(about))
    save_file(tensors, to / "adapter_model.safetensors", metadata={"format": "pt"})
    return asked["to"]


def answer(request: dict[str, Any]) -> Any:
    if "vary" in request:
        return vary(request)
    return adapt(request) if "adapt" in request else score(request)


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
