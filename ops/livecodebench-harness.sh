#!/usr/bin/env bash
# Takes LiveCodeBench's test harness, as lighteval packages it, out of a wheel: its own repository is no package. Our
# grader of programs is compared with it. Nothing is installed. Running it again does nothing.
#
#   ops/livecodebench-harness.sh STATE_DIR [PYTHON]     (downloads 600 KB, keeps STATE_DIR/livecodebench)
set -euo pipefail
cd "$(dirname "$0")/.."

package=lighteval==0.13.0
[ $# -ge 1 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
target=$1/livecodebench
python=${2:-.venv/bin/python}
[ "$(cat "$target/.complete" 2>/dev/null)" != "$package" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --dest "$work" "$package" >&2
"$python" -m zipfile -e "$work"/*.whl "$work/wheel"
rm -rf "$target"
mkdir -p "$target"
install -m 644 "$work/wheel/lighteval/tasks/tasks/lcb/codegen_metrics.py" "$target/harness.py"
echo "$package" >"$target/.complete"
