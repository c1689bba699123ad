#!/usr/bin/env bash
# Installs Python packages, as wheels, into a directory for another Python than the one that installs them.
#
#   ops/python-packages.sh VERSION DIR PACKAGE...
#
#   VERSION   of the Python that will use them, as 3.11
#
# PYTHON names the interpreter that installs (default: that of the checkout's .venv); its uv is used where it has one.
set -euo pipefail

[ $# -ge 3 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
version=$1 target=$2
shift 2
python=${PYTHON:-$(cd "$(dirname "$0")/.." && pwd)/.venv/bin/python}
command -v "$python" >/dev/null || python=python3
uv=$(dirname "$(command -v "$python")")/uv
[ -x "$uv" ] || "$python" -m pip --version >/dev/null 2>&1 || uv=$(command -v uv) ||
  { echo "python-packages: $python has neither pip nor uv: install one of them" >&2; exit 1; }
if [ -x "$uv" ]; then
  exec "$uv" pip install -q --target "$target" --python "$python" --python-version "$version" --only-binary :all: "$@"
fi
exec "$python" -m pip install -q --disable-pip-version-check --target "$target" --python-version "$version" \
  --only-binary=:all: "$@"
