#!/bin/bash
# venvs.sh DIR [queue|sandbox|chaos]: one virtual environment below DIR for each library that `python -m bench.queue`
# (the default), `python -m bench.sandbox` or `python -m bench.chaos` compares with.
#
# Each library has its own, since they do not agree on what they need. Environments that are already as asked for are
# left alone, so the script may run before every benchmark. PYTHON names the interpreter (default: this project's, or
# python3); ardiq and OpenHands need Python >= 3.12, which is looked for, and are left out where there is none.
set -euo pipefail

case "$#:${2:-queue}" in 1:queue | 2:queue | 2:sandbox | 2:chaos) ;; *)
  echo 'usage: bench/venvs.sh DIR [queue|sandbox|chaos]' >&2
  exit 2
esac
mkdir -p "$1"
dir=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)

uv=$(command -v uv || true)
[ -n "$uv" ] || { [ ! -x "$root/.venv/bin/uv" ] || uv=$root/.venv/bin/uv; }

is_at_least() { # INTERPRETER MAJOR MINOR: it really runs (a pyenv shim may only say that it does not) and is new enough
  "$1" -c "import sys; sys.exit(sys.version_info < ($2, $3))" >/dev/null 2>&1
}

python=${PYTHON:-$root/.venv/bin/python}
is_at_least "$python" 3 11 || python=python3
is_at_least "$python" 3 11 || { echo "$python is no Python >= 3.11: name one with PYTHON=..." >&2; exit 1; }

find_python312() {
  local candidate pyenv_root=${PYENV_ROOT:-$HOME/.pyenv}
  {
    echo "$python"
    echo python3.12
    echo python3.13
    [ -z "$uv" ] || "$uv" python find --no-python-downloads --no-project '>=3.12' 2>/dev/null || true
    compgen -G "$pyenv_root/versions/3.1[2-4]*/bin/python" || true
  } | while read -r candidate; do
    if is_at_least "$candidate" 3 12; then
      echo "$candidate"
      break
    fi
  done
}

make_venv() { # NAME INTERPRETER REQUIREMENT...
  local name=$1 interpreter=$2 stamp=$dir/$1/requirements.stamp
  shift 2
  local wanted="$interpreter $*"
  if [ -x "$dir/$name/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  echo "making $dir/$name: $*"
  rm -rf "${dir:?}/$name"
  if [ -n "$uv" ]; then
    "$uv" venv -q --no-project --no-python-downloads -p "$interpreter" "$dir/$name" || return
    "$uv" pip install -q --compile-bytecode -p "$dir/$name/bin/python" "$@" || return
  else
    "$interpreter" -m venv "$dir/$name" || return
    "$dir/$name/bin/pip" install -q --disable-pip-version-check "$@" || return
  fi
  echo "$wanted" >"$stamp"
}

queue() {
  local hiredis=hiredis==3.5.0
  make_venv rq "$python" rq==2.12.0 redis==8.1.0 $hiredis
  make_venv huey "$python" huey==3.5.4 redis==8.1.0 $hiredis
  make_venv dramatiq "$python" 'dramatiq[redis]==2.2.1' $hiredis
  make_venv saq "$python" 'saq[redis]==0.26.4' typing_extensions $hiredis # saq does not declare typing_extensions
  make_venv taskiq "$python" taskiq==0.13.0 taskiq-redis==1.2.4 $hiredis
  make_venv streaq "$python" streaq==7.2.0 $hiredis
  if [ -n "$python312" ]; then
    make_venv ardiq "$python312" ardiq==1.2.0 redis==8.1.0 $hiredis
  else
    echo 'no Python >= 3.12 here: ardiq is left out' >&2
  fi
}

sandbox() {
  make_venv pty "$python" ptyprocess==0.7.0
  make_venv jupyter "$python" jupyter_client==8.10.0 pyzmq==27.3.0
  make_venv swerex "$python" swe-rex==1.4.0 aiohttp # its client over HTTP does not declare aiohttp
  if [ -n "$python312" ]; then
    make_venv openhands "$python312" openhands-tools==1.49.1 openhands-sdk==1.49.1 ||
      echo 'OpenHands could not be installed: it is left out' >&2
  else
    echo 'no Python >= 3.12 here: OpenHands is left out' >&2
  fi
}

chaos() {
  local hiredis=hiredis==3.5.0
  make_venv rq "$python" rq==2.12.0 redis==8.1.0 $hiredis
  make_venv dramatiq "$python" 'dramatiq[redis]==2.2.1' $hiredis
  if [ -n "$python312" ]; then
    make_venv ardiq "$python312" ardiq==1.2.0 redis==8.1.0 $hiredis
    make_venv verifiers "$python312" verifiers==0.4.0 || echo 'verifiers could not be installed: it is left out' >&2
    make_venv agl "$python312" agentlightning==1.0.2 || echo 'Agent Lightning could not be installed: it is left out' >&2
  else
    echo 'no Python >= 3.12 here: ardiq, verifiers and Agent Lightning are left out' >&2
  fi
}

python312=$(find_python312)
"${2:-queue}"
