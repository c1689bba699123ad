#!/usr/bin/env python3
import json

WANTED = {"requests": 7, "errors": 2, "slowest": "/search", "by_method": {"GET": 4, "POST": 2, "PUT": 1}}
try:
    with open("/app/report.json") as file:
        report = json.load(file)
    right = {name: float(report.get(name) == value) for name, value in WANTED.items()}
except (OSError, ValueError, AttributeError):
    right = dict.fromkeys(WANTED, 0.0)
with open("/logs/verifier/reward.json", "w") as file:
    json.dump({"reward": float(all(right.values())), **right}, file)
