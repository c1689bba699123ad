#!/usr/bin/env bash
# Runs the demo as a new user would: a wheel of this checkout in an environment of its own, outside the checkout, as a
# user without rights. As root it takes the user `nobody`.
#
#   ops/demo-wheel.sh [DIR]        (default a temporary directory, which is removed)
#
# DIR/state may be there from before: then only what is missing is downloaded.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
python=$here/.venv/bin/python
[ -x "$python" ] || python=python3
if [ $# -ge 1 ]; then
  mkdir -p "$1"
  place=$(cd "$1" && pwd)
else
  place=$(mktemp -d /tmp/prorl-wheel.XXXXXX)
  trap 'rm -rf "$place"' EXIT
fi
chmod 755 "$place"
"$python" -m pip wheel -q --no-deps -w "$place" "$here"

as_user=(env)
if [ "$(id -u)" = 0 ]; then
  chown -R nobody "$place"
  as_user=(setpriv --reuid nobody --clear-groups env)
fi
run() { "${as_user[@]}" -u PYTHONPATH HOME="$place" "$@"; }

cd "$place"
[ -x venv/bin/python ] || run python3 -m venv venv
run venv/bin/pip install -q --disable-pip-version-check "$(ls prorl_mq-*.whl)[demo]"
run venv/bin/prorl-mq install-tools sandbox demo monitoring --state-dir state
run venv/bin/prorl-mq demo --once --state-dir state
