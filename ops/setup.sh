#!/usr/bin/env bash
# Makes the project's virtual environment, and installs the system packages that it uses. Running it again does only
# what is missing.
#
#   ops/setup.sh [VENV]        (default .venv)
#
# As root on Debian or Ubuntu it installs redis-server, bubblewrap, lua-check and python3 where they are missing, and
# starts no service. Otherwise it says what is missing: a server and bubblewrap also come as wheels, and without
# luacheck only the check of the Lua scripts is left out. PYTHON chooses the interpreter (3.11 or later).
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:-.venv}
policy=/usr/sbin/policy-rc.d

say() { printf 'setup: %s\n' "$*" >&2; }

find_python() {
  local name
  for name in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if "$name" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  say "no Python 3.11 or later with venv found (Debian: python3-venv); set PYTHON to one"
  return 1
}

missing_packages() {
  command -v redis-server >/dev/null || echo redis-server
  command -v bwrap >/dev/null || echo bubblewrap
  command -v luacheck >/dev/null || echo lua-check
  [ -x /usr/bin/python3 ] || echo python3
}

# A package's service must neither start now nor at boot: the project starts servers of its own.
install_packages() {
  local -a missing
  local made_policy=
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "not installed on this system: ${missing[*]} (an administrator can install them; continuing without)"
    return 0
  fi
  say "installing ${missing[*]}"
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
    made_policy=1
  fi
  local -a install=(apt-get install -y -q --no-install-recommends "${missing[@]}")
  local done_it=1
  DEBIAN_FRONTEND=noninteractive "${install[@]}" >&2 ||
    { apt-get update -q >&2 && DEBIAN_FRONTEND=noninteractive "${install[@]}" >&2; } || done_it=
  [ -z "$made_policy" ] || rm -f $policy
  case " ${missing[*]} " in
    *" redis-server "*) ! command -v systemctl >/dev/null || systemctl disable redis-server >/dev/null 2>&1 || true ;;
  esac
  [ -n "$done_it" ] || { say "apt-get could not install ${missing[*]}"; return 1; }
}

# uv does not read pip's settings: the places that pip is told to look at are handed on.
package_sources() {
  local name option place
  for name in find-links extra-index-url index-url; do
    option=--$name
    [ "$name" != index-url ] || [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ] || continue
    for place in $("$venv/bin/pip" config list | sed -n "s/^[^=]*\.$name='\(.*\)'\$/\1/p" | sed 's/\\n/ /g'); do
      echo "$option=$place"
    done
  done | sort -u
}

install_project() {
  local -a sources
  [ -x "$venv/bin/python" ] || "$(find_python)" -m venv "$venv"
  [ -x "$venv/bin/uv" ] || "$venv/bin/python" -m pip install -q uv
  mapfile -t sources < <(package_sources)
  "$venv/bin/uv" pip install -q -p "$venv/bin/python" "${sources[@]}" --index-strategy unsafe-best-match \
    -e '.[service,dashboard,tasks,verifiers,swe,export,otel]' --group dev
}

install_packages
install_project
say "$venv is complete"
