#!/usr/bin/env bash
# Installs Harbor itself, against which our reader of its format is tested, in an environment of its own. What is there is
# kept. Also tells which image the example tasks run in.
#
#   ops/harbor.sh STATE_DIR     (STATE_DIR/harbor, 420 MB; needs Python 3.12 or later)
#
# Exit code 3: there is no such Python.
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
package=harbor==0.24.0
images=$1/images/harbor
mkdir -p "$images"
[ -e "$images/images.json" ] || echo '{"python:3.11-bookworm": "../base.sif"}' >"$images/images.json"
[ "$(cat "$1/harbor/.complete" 2>/dev/null)" != "$package" ] || exit 0

for python in python3.14 python3.13 python3.12 "$HOME"/.pyenv/versions/3.1[234]*/bin/python3; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && break
  python=
done
[ -n "$python" ] || { echo "harbor: there is no Python 3.12 or later on PATH" >&2; exit 3; }
rm -rf "$1/harbor"
"$python" -m venv "$1/harbor"
"$1/harbor/bin/python" -m pip install -q --disable-pip-version-check "$package"
echo "$package" >"$1/harbor/.complete"
