#!/usr/bin/env bash
# Builds the documentation site with MkDocs, which is installed into an environment of its own.
#
#   ops/docs.sh DIR PYTHON      (DIR/site is the site; PYTHON can import the project)
#
# A link that leads nowhere, or to a heading that is not there, fails the build.
set -euo pipefail

[ $# -eq 2 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
version=9.8.2
mkdir -p "$1"
place=$(cd "$1" && pwd)
python=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
cd "$(dirname "$0")/.."
if [ "$(cat "$place/venv/.installed" 2>/dev/null)" != "$version" ]; then
  "$python" -m venv --clear "$place/venv"
  "$place/venv/bin/pip" install -q --disable-pip-version-check "mkdocs-material==$version"
  echo "$version" >"$place/venv/.installed"
fi
"$python" -m ops.site "$place"
cd "$place"
# Not --quiet: with it, warnings are not counted and nothing fails.
NO_MKDOCS_2_WARNING=1 venv/bin/mkdocs build --strict >build.log 2>&1 || {
  grep -vE '^INFO' build.log >&2
  exit 1
}
echo "$place/site"
