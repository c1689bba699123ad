#!/usr/bin/env bash
# Builds an Apptainer image of the service, as a plain user.
#
#   ops/service-image.sh STATE_DIR
#
#   STATE_DIR/images/service.sif   prorl-mq, prorl-api, prorl-worker and prorl-keeper with the extra `service`
#
# It stands on the base image of `ops/sandbox-tools.sh` and has the wheel of this checkout, else the released package of
# this version. WHEEL names another wheel.
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
ops=$(cd "$(dirname "$0")" && pwd)
state=$(cd "$1" && pwd)
images=$state/images
say() { printf 'service-image: %s\n' "$*" >&2; }

apptainer=$state/apptainer/bin/apptainer
[ -x "$apptainer" ] || apptainer=$(command -v apptainer) ||
  { say "apptainer is missing: prorl-mq install-tools sandbox"; exit 1; }
[ -d "$images/base" ] || { say "$images/base is missing: prorl-mq install-tools sandbox"; exit 1; }
work=$(mktemp -d "$images/.service.XXXXXX")
trap 'rm -rf "$work"' EXIT

python=${PYTHON:-$ops/../.venv/bin/python}
command -v "$python" >/dev/null || python=python3
package=${WHEEL:-}
if [ -z "$package" ] && [ -f "$ops/../pyproject.toml" ]; then
  "$python" -m pip wheel -q --disable-pip-version-check --no-deps -w "$work" "$ops/.."
  package=$(ls "$work"/*.whl)
fi
: "${package:=prorl-mq==$("$python" -c 'import prorl_mq; print(prorl_mq.__version__)')}"
[ "${package%.whl}" = "$package" ] || package="$package[service]"
[ "${package%\]}" != "$package" ] || package="prorl-mq[service]==${package#*==}"

say "installing $package"
version=$(basename "$(readlink "$images/base/usr/bin/python3")" | tr -d '[:alpha:]')
PYTHON=$python "$ops/python-packages.sh" "$version" "$work/site" "$package"
sed -i '1s|^#!.*python.*|#!/usr/bin/python3|' "$work"/site/bin/*
say "building $images/service.sif"
# Nothing runs while it is built, so a namespace of a user is enough: root in a container may have fewer rights than that.
"$apptainer" --silent build $([ "$(id -u)" != 0 ] || echo --userns) --mksquashfs-args '-comp zstd -Xcompression-level 3' \
  --build-arg base="$images/base" --build-arg site="$work/site" \
  "$work/service.sif" "$ops/service/service.def"
version_in() { "$apptainer" --silent exec --userns --containall "$@" "$work/service.sif" prorl-mq --version >&2; }
version_in || {
  say "this user cannot mount it here, as /dev/fuse is not open to users: it is unpacked at each start with --unsquash"
  version_in --unsquash
  echo "start $images/service.sif with apptainer's --unsquash: this user cannot mount images here (the reason is above)"
}
mv "$work/service.sif" "$images/service.sif"
say "$(du -h "$images/service.sif" | cut -f 1) in $images/service.sif"
