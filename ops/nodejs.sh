#!/usr/bin/env bash
# Installs the packages of the example client in JavaScript. What is there is kept.
#
#   ops/nodejs.sh STATE_DIR
#
# Node.js 20 or later and npm must be there (Debian: nodejs, npm).
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
place=$(mkdir -p "$1" && cd "$1" && pwd)/nodejs
recipe=$(cat "$0" "$here/examples/nodejs/package.json" | sha256sum | cut -c 1-16)

command -v node >/dev/null && command -v npm >/dev/null || {
  echo 'nodejs: node or npm is missing (Debian: nodejs, npm): the client in JavaScript is not tested' >&2
  [ -z "${CI:-}" ]
  exit
}
[ "$(cat "$place/.complete" 2>/dev/null)" != "$recipe" ] || exit 0
mkdir -p "$place"
cp "$here/examples/nodejs/package.json" "$place/"
npm install --prefix "$place" --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error >&2
echo "$recipe" >"$place/.complete"
