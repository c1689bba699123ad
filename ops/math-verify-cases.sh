#!/usr/bin/env bash
# Takes math-verify's own test cases out of its source package, so that tests can hold our use of it against them.
# Nothing is installed. Running it again does nothing.
#
#   ops/math-verify-cases.sh STATE_DIR [PYTHON]     (downloads 60 KB, keeps STATE_DIR/math-verify; PYTHON: .venv/bin/python)
set -euo pipefail
cd "$(dirname "$0")/.."

package=math-verify==0.9.0
[ $# -ge 1 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
target=$1/math-verify
python=${2:-.venv/bin/python}
[ "$(cat "$target/.complete" 2>/dev/null)" != "$package" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip download -q --disable-pip-version-check --no-deps --no-binary=:all: \
  --dest "$work" "$package" >&2
tar -xzf "$work"/*.tar.gz -C "$work"
rm -rf "$target"
mkdir -p "$target"
install -m 644 "$work"/*/tests/*.py "$work"/*/LICENCE "$target"
echo "$package" >"$target/.complete"
