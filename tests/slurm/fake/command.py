#!/usr/bin/env python3
"""Stands in for a Slurm command: writes down how it was called, and answers what the test put beside it."""

import json
import os
import sys
from pathlib import Path

place = Path(os.environ["FAKE_SLURM"])
name = Path(sys.argv[0]).name
stdin = sys.stdin.read() if name == "sbatch" else ""
env = {
    key: value for key, value in os.environ.items() if key.startswith(("SLURM", "SBATCH", "SQUEUE", "SCANCEL", "SINFO"))
}
with (place / "calls").open("a") as calls:
    calls.write(json.dumps({"argv": [name, *sys.argv[1:]], "stdin": stdin, "env": env}) + "\n")
answer = place / name
for refused in place.glob(f"{name}-refuses-*"):  # a job of this name
    if f".{refused.name.rpartition('-')[2]}." in stdin:
        answer = refused
code, _, text = answer.read_text().partition("\n") if answer.exists() else ("0", "", "")
(sys.stdout if code == "0" else sys.stderr).write(text)
sys.exit(int(code))
