"""Scores ids with images in a Transformers forward pass: a program for vLLM's environment.

Reads one JSON request {"model", "ids", "start", "images": [base64], "temperature"}; writes the log-probabilities of
ids[start:], and the ids that the model's processor gives each image. With "messages" and "tools" also those that it
gives the conversation as a whole, up to where the model begins to write.
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
torch.set_num_threads(1)
processor = AutoProcessor.from_pretrained(asked["model"])
model = AutoModelForImageTextToText.from_pretrained(asked["model"], dtype=torch.float32).eval()
images = [Image.open(io.BytesIO(base64.b64decode(each))).convert("RGB") for each in asked["images"]]
seen = processor(text=[processor.image_token * len(images)], images=images, return_tensors="pt")
ids, start = torch.tensor([asked["ids"]]), asked["start"]
with torch.no_grad():
    logits = model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=seen["pixel_values"],
        image_grid_thw=seen["image_grid_thw"],
        mm_token_type_ids=(ids == processor.image_token_id).int(),
    ).logits[0]
logprobs = torch.log_softmax(logits.double() / asked["temperature"], dim=-1)
scored = logprobs[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0].tolist()
whole = None
if "messages" in asked:
    text = processor.apply_chat_template(asked["messages"], tools=asked["tools"], add_generation_prompt=True)
    shown = images[: text.count(processor.image_token)]
    whole = processor(text=[text], images=shown, return_tensors="pt")["input_ids"][0].tolist()
json.dump({"logprobs": scored, "image_ids": seen["input_ids"][0].tolist(), "prompt_ids": whole}, sys.stdout)
