"""Lets a torchvision that was built for CUDA be imported beside a torch that was not, for its plain Python alone.

Its compiled operators cannot be loaded then, and it registers two of them by name all the same. TORCH_SITE names
another environment's packages, which are taken where the program's own lacks one: torch, for a RUN worker.
"""

import importlib
import importlib.abc
import os
import sys
from typing import Any

ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _Declaring(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        del path, target
        if name == "torchvision":
            sys.meta_path.remove(self)
            torch: Any = importlib.import_module("torch")
            for operator in ("nms", "qnms"):
                torch.library.define(f"torchvision::{operator}", ARGUMENTS)


sys.meta_path.insert(0, _Declaring())
sys.path += [os.environ["TORCH_SITE"]] if "TORCH_SITE" in os.environ else []
