#!/usr/bin/env bash
# Takes the modules with the types of trainers out of their packages, so that tests can make these types from our
# output. Of most, nothing is installed or imported whole: that takes GPUs, Ray and gigabytes. Those that are small
# enough to be imported lie whole in STATE_DIR/trainers/whole, without what they depend on. Again, it does nothing.
#
#   ops/trainer-types.sh STATE_DIR [PYTHON]     (downloads 47 MB, keeps STATE_DIR/trainers; PYTHON: .venv/bin/python)
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(verl==0.9.1 skyrl==0.4.0 nemo-gym==0.7.0 agentlightning==1.0.2 httpx-retries==0.6.0 gem-llm==0.1.0)
packages+=(areal==1.0.4)
whole=(agentlightning httpx_retries gem)
modules=(
  verl/experimental/agent_loop/agent_loop.py
  skyrl/train/generators/base.py
  skyrl/train/utils/trainer_utils.py
  nemo_gym/openai_utils.py
  nemo_gym/config_types.py
  areal/api/workflow_api.py
  areal/api/cli_args.py
  areal/infra/workflow_context.py
)
[ $# -ge 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
target=$1/trainers
python=${2:-.venv/bin/python}
[ "$(cat "$target/.complete" 2>/dev/null)" != "${packages[*]}" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Some want a later Python than ours, which matters only to those who import them.
"$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --ignore-requires-python \
  --dest "$work" "${packages[@]}" >&2
rm -rf "$target"
mkdir -p "$target"
for wheel in "$work"/*.whl; do "$python" -m zipfile -e "$wheel" "$work/unpacked"; done
for module in "${modules[@]}"; do install -D -m 644 "$work/unpacked/$module" "$target/$module"; done
mkdir "$target/whole"
for package in "${whole[@]}"; do cp -r "$work/unpacked/$package" "$target/whole/"; done
echo "${packages[*]}" >"$target/.complete"
