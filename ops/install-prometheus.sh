#!/usr/bin/env bash
# Unpacks Debian's Prometheus (prometheus, promtool) without root and without touching the system's packages: both are
# programs that need a C library alone. Where it is complete, nothing is done; to upgrade, remove it.
#
#   ops/install-prometheus.sh PREFIX
#
# Exit code 3: this machine cannot have it. 4: the archive does not deliver it now. (ops/debian-packages.sh says how to
# name another archive.)
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
ops=$(cd "$(dirname "$0")" && pwd)
prefix=$(realpath -m "$1")

[ ! -e "$prefix/.complete" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'install-prometheus: installing into %s\n' "$prefix" >&2
"$ops/debian-packages.sh" own "$work/packages" prometheus
dpkg-deb -x "$work"/packages/prometheus_*.deb "$work/root"
mkdir -p "$prefix/bin"
install -m 755 "$work/root/usr/bin/prometheus" "$work/root/usr/bin/promtool" "$prefix/bin/"
"$prefix/bin/promtool" --version >/dev/null
touch "$prefix/.complete"
