"""Makes the policy of the training example: a tokenizer, a Qwen3 of 0.5 M parameters, and what imitation teaches it.

    python -m examples.train.warm_start OUT_DIR [--steps N]

The demonstrators are careless, so a policy that imitates them finds the gold of two to four trails in ten. The same
seed gives the same weights on the same machine. Needs torch, transformers and tokenizers: run it in the environment
that `ops/vllm-cpu.sh` makes.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from examples.train.demonstrations import demonstration
from examples.train.tokenizer import TOOLS, make_tokenizer

SEED = 0
CONTEXT = 4096  # tokens: what ops/vllm-serve.sh serves
STEPS, BATCH, RATE = 500, 32, 3e-3


def make_model(tokenizer: Any) -> Any:
    torch.manual_seed(SEED)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id)
    return model


def batch_of(tokenizer: Any, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Demonstrations that no other batch has: ids, and labels that are -100 wherever the agent does not speak."""
    opening = tokenizer.encode("<|im_start|>assistant\n")
    ids, labels = [], []
    for place in range(number * BATCH, (number + 1) * BATCH):
        messages = demonstration(f"imitation-{place}")
        one = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=True, return_dict=False)
        ids.append(torch.tensor(one))
        labels.append(torch.tensor(_spoken(one, opening, tokenizer.eos_token_id)))
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(ids, True, tokenizer.pad_token_id), pad(labels, True, -100)


def _spoken(ids: Sequence[int], opening: Sequence[int], end: int) -> list[int]:
    """The ids that the agent would sample: from behind each opening to the end of the turn."""
    labels, speaking = [-100] * len(ids), False
    for place, token in enumerate(ids):
        if speaking:
            labels[place] = token
            speaking = token != end
        elif list(ids[place + 1 - len(opening) : place + 1]) == list(opening):
            speaking = True
    return labels


def imitate(model: Any, tokenizer: Any, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        ids, labels = batch_of(tokenizer, step)
        loss = model(ids, attention_mask=(labels != -100) | (ids != tokenizer.pad_token_id), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"imitation step {step}: loss {loss.item():.4f}, {ids.shape[1]} tokens long", flush=True)


def main() -> None:
    """Builds beside the target and moves it into place."""
    parser = argparse.ArgumentParser(prog="python -m examples.train.warm_start")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of imitation (default {STEPS})")
    given = parser.parse_args()
    out: Path = given.out
    out.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # so small a model gains nothing from more
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        built = Path(scratch) / "model"
        tokenizer = make_tokenizer()
        model = make_model(tokenizer)
        imitate(model, tokenizer, given.steps)
        model.save_pretrained(built)
        tokenizer.save_pretrained(built)
        if out.exists():
            shutil.rmtree(out)
        built.replace(out)
    count = sum(weight.numel() for weight in model.parameters())
    print(f"{out}: {count / 1e6:.2f} M parameters, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
