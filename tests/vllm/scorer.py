"""Scores token ids with a Transformers forward pass: a program of its own, since torch lives in vLLM's environment.

Reads one JSON request a line and answers each with one line:

    {"weights": [[end, DIR], ...], "ids": [...], "start": n, "temperature": T}  the log-probabilities of ids[start:]
    {"vary": DIR, "to": DIR, "seed": n}                                         a model of its shape with other weights

The tokens before `end` run through the weights of DIR, those that follow through the next ones, over the keys and
values that the earlier weights left: so a turn looks whose weights were swapped in its middle.
"""

import json
import sys
from functools import cache
from typing import Any

import torch
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


for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(vary(request) if "vary" in request else score(request)), flush=True)
