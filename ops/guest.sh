#!/usr/bin/env bash
# A virtual machine for tests of control groups: Debian's QEMU and kernel, and the programs that its root file system
# gets. Needs no root and no KVM, and leaves the system's packages alone. Where it is complete, nothing is done; to
# upgrade, remove it.
#
#   ops/guest.sh PREFIX PYTHON
#
#   PYTHON  one of the release that Debian has: it compiles the library, which takes the machine long
#
# Exit code 3: this machine cannot have it. 4: the archive does not deliver it now. (ops/debian-packages.sh says how to
# name another archive.)
set -euo pipefail

[ $# -eq 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
ops=$(cd "$(dirname "$0")" && pwd)
prefix=$(realpath -m "$1")

[ ! -e "$prefix/.complete" ] || exit 0
[ "$(uname -m)" = x86_64 ] || { echo "guest: its programs are for x86_64, and this is $(uname -m)" >&2; exit 3; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'guest: installing into %s\n' "$prefix" >&2
"$ops/debian-packages.sh" own "$work/machine" qemu-system-x86 linux-image-cloud-amd64
"$ops/debian-packages.sh" own "$work/root" python3 bash coreutils bubblewrap busybox-static
rm -rf "$prefix"
mkdir -p "$prefix"
for part in machine root; do
  for package in "$work/$part"/*.deb; do
    dpkg-deb -x "$package" "$prefix/$part"
  done
  rm -rf "$prefix/$part"/usr/share/{doc,man,locale,info,zoneinfo,i18n} "$prefix/$part"/usr/lib/x86_64-linux-gnu/{gconv,perl*}
done
mv "$prefix"/machine/boot/vmlinuz-* "$prefix/kernel"
rm -rf "$prefix"/machine/{boot,etc,var,lib/modules,usr/sbin,sbin} "$prefix"/root/{boot,etc,var,usr/share/perl*}
"$2" -m compileall -q --invalidation-mode unchecked-hash -s "$prefix/root" "$prefix"/root/usr/lib/python3.* || true
touch "$prefix/.complete"
