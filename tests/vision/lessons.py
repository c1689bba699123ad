"""Teaches a tiny model with vision to answer some conversations: a program for vLLM's environment.

Reads one JSON request {"model", "lessons": [{"ids", "mask", "images": [base64]}], "least", "steps"}, trains until each
id whose mask is 1 has a probability of `least` or more, and saves the model in its directory.
"""

import base64
import importlib
import io
import json
import sys
from typing import Any

from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

asked = json.load(sys.stdin)
torch: Any = importlib.import_module("torch")  # of vLLM's environment
torch.manual_seed(0)
torch.set_num_threads(1)
processor = AutoProcessor.from_pretrained(asked["model"])
model = AutoModelForImageTextToText.from_pretrained(asked["model"], dtype=torch.float32).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def lesson(told: Any) -> Any:
    images = [Image.open(io.BytesIO(base64.b64decode(each))).convert("RGB") for each in told["images"]]
    seen = processor.image_processor(images=images, return_tensors="pt")
    ids = torch.tensor([told["ids"]])
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == processor.image_token_id).int(),
        "pixel_values": seen["pixel_values"],
        "image_grid_thw": seen["image_grid_thw"],
    }
    return inputs, ids, torch.tensor(told["mask"][1:]).bool()


lessons = [lesson(each) for each in asked["lessons"]]
for _ in range(asked["steps"]):
    least = 1.0
    optimizer.zero_grad()
    for inputs, ids, wanted in lessons:
        logits = model(**inputs).logits[0, :-1][wanted]
        losses = torch.nn.functional.cross_entropy(logits, ids[0, 1:][wanted], reduction="none")
        losses.mean().backward()
        least = min(least, float(torch.exp(-losses.detach().max())))
    if least >= asked["least"]:
        break
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
else:
    sys.exit(f"after {asked['steps']} steps an id still has the probability {least}")
model.save_pretrained(asked["model"])
