#!/usr/bin/env bash
# Prepares this machine for sandboxes: bubblewrap with IPython, then Apptainer with a base image. Running it again does
# only what is missing. Where Apptainer cannot be had it says why, and bubblewrap is what sandboxes use.
#
#   ops/sandbox-tools.sh STATE_DIR
#
#   STATE_DIR/sandbox-python       see ops/sandbox-base.sh
#   STATE_DIR/apptainer, images    see ops/install-apptainer.sh, ops/sandbox-image.sh
#   STATE_DIR/apptainer-missing    why the archive did not deliver Apptainer, if it did not
#
# With CI set, only that last reason is no failure.
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
ops=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
state=$(cd "$1" && pwd -P)
missing=$state/apptainer-missing

# Sandboxes of root run as a user without rights, who must be able to read what they run.
reachable() {
  local directory=$1
  while [ "$directory" != / ]; do
    case $(stat -c %A "$directory") in *[xt]) ;; *) return 1 ;; esac
    directory=$(dirname "$directory")
  done
}

place_elsewhere() {
  local place name
  place=/var/lib/prorl-mq/$(printf %s "$state" | sha256sum | cut -c 1-12)
  for name in apptainer images; do
    [ ! -e "$state/$name" ] || continue
    mkdir -p "$place/$name"
    chmod 755 /var/lib/prorl-mq "$place" "$place/$name"
    ln -sfn "$place/$name" "$state/$name"
  done
}

# Continues where this machine cannot have it (exit code 3), or the archive does not deliver it now (4).
without() {
  local code=$1 why=$2
  [ "$code" = 3 ] || [ "$code" = 4 ] || exit "$code"
  [ -z "${CI:-}" ] || [ "$why" = archive ] || exit "$code"
  echo "apptainer is missing: sandboxes use bubblewrap (the reason is above)"
  exit 0
}

"$ops/sandbox-base.sh" "$state"
[ "$(id -u)" != 0 ] || reachable "$state" || place_elsewhere
rm -f "$missing"
code=0
"$ops/install-apptainer.sh" "$state/apptainer" || code=$?
if [ $code = 4 ]; then
  echo "the package archive did not deliver Apptainer" >"$missing"
  without 4 archive
fi
[ $code = 0 ] || without $code machine
"$ops/sandbox-image.sh" "$state" || without $? machine
