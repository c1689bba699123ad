#!/usr/bin/env bash
# Takes models' own chat templates out of packages that carry them, for the tests of model formats. Nothing is
# installed. Running it again does nothing.
#
#   ops/chat-templates.sh STATE_DIR [PYTHON]     (downloads 2.5 MB, keeps STATE_DIR/chat-templates; PYTHON: .venv/bin/python)
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(trl==1.16.0 axolotl==0.19.0)
[ $# -ge 1 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
target=$1/chat-templates
python=${2:-.venv/bin/python}
[ "$(cat "$target/.complete" 2>/dev/null)" != "${packages[*]}" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --ignore-requires-python \
  --dest "$work" "${packages[@]}" >&2
for wheel in "$work"/*.whl; do "$python" -m zipfile -e "$wheel" "$work/unpacked"; done
rm -rf "$target"
mkdir -p "$target/trl" "$target/axolotl"
install -m 644 "$work"/unpacked/trl/chat_templates/*.jinja "$target/trl"
install -m 644 "$work"/unpacked/axolotl/utils/chat_templates/templates/*.jinja "$target/axolotl"
echo "${packages[*]}" >"$target/.complete"
