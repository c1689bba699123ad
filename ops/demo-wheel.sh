#!/usr/bin/env bash
# Runs the demo as a new user would: a wheel of this checkout in an environment of its own, outside the checkout, as a
# user without rights. As root it takes the user that AS names, or `nobody`.
#
#   [AS=USER] ops/demo-wheel.sh [DIR]        (default a temporary directory, which is removed)
#
# DIR/state may be there from before: then only what is missing is downloaded. The last lines say what each step took.
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
  user=${AS:-nobody}
  chown -R "$user" "$place"
  as_user=(setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups env)
fi
run() { "${as_user[@]}" -u PYTHONPATH HOME="$place" "$@"; }

figures=()
step() {  # NAME PATH COMMAND ...: runs it, and notes its seconds and what is then in PATH
  local name=$1 path=$2 began=$SECONDS
  shift 2
  run "$@"
  figures+=("$(printf '%-28s %4d s  %6s  %s' "$name" $((SECONDS - began)) "$(du -sh "$path" | cut -f1)" "$path")")
}

cd "$place"
[ -x venv/bin/python ] || run python3 -m venv venv
step 'pip install' venv venv/bin/pip install -q --disable-pip-version-check "$(ls prorl_mq-*.whl)[demo]"
step 'install-tools sandbox' state venv/bin/prorl-mq install-tools sandbox monitoring --state-dir state
step 'install-tools demo' state venv/bin/prorl-mq install-tools demo --state-dir state
step 'demo' out.jsonl venv/bin/prorl-mq demo --once --state-dir state
printf '%s\n' "${figures[@]}"
