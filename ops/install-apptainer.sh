#!/usr/bin/env bash
# Installs Apptainer without root and without touching the system's packages.
#
#   ops/install-apptainer.sh PREFIX
#
# Debian has the package only in sid, whose programs need a newer C library than a stable release has. So the package
# comes with everything that it needs, its C library too, into a directory of its own. PREFIX becomes part of the
# programs: it cannot be moved. Where it is complete, nothing is done; to upgrade, remove it.
# Exit code 3: this machine cannot have it. 4: the archive does not deliver it now. (ops/debian-packages.sh says how to
# name another archive; ARCHIVE_SUITE names the suite that has apptainer.)
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
ops=$(cd "$(dirname "$0")" && pwd)
prefix=$(realpath -m "$1")
say() { printf 'install-apptainer: %s\n' "$*" >&2; }

[ ! -e "$prefix/.complete" ] || exit 0
if [ -d "$prefix" ] && [ -n "$(ls -A "$prefix")" ]; then
  say "$prefix holds something else, or half an installation: remove it, or name another directory"
  exit 1
fi
case $(uname -m) in
  x86_64) libraries=lib/x86_64-linux-gnu loader=ld-linux-x86-64.so.2 ;;
  aarch64) libraries=lib/aarch64-linux-gnu loader=ld-linux-aarch64.so.1 ;;
  *) say "there is no Apptainer for $(uname -m) here"; exit 3 ;;
esac

work=$(mktemp -d)
fresh=$prefix.new.$$
trap 'rm -rf "$work" "$fresh"' EXIT
say "installing into $prefix"
suite=${ARCHIVE_SUITE:-$(. /etc/os-release 2>/dev/null && [ "${ID:-}" = ubuntu ] && echo devel || echo sid)}
"$ops/debian-packages.sh" "$suite" "$work/packages" apptainer squashfuse patchelf
for package in "$work"/packages/*.deb; do
  dpkg-deb -x "$package" "$work/root"
done

usr=$work/root/usr
helpers=$fresh/$libraries/apptainer/bin
mkdir -p "$fresh/bin" "$fresh/$libraries" "$fresh/var/lib"
cp -a "$usr/bin/apptainer" "$fresh/bin/"
ln -s apptainer "$fresh/bin/singularity"
cp -a "$usr/$libraries/apptainer" "$usr/$libraries"/*.so* "$fresh/$libraries/"
cp -a "$usr/bin/mksquashfs" "$usr/bin/unsquashfs" "$usr/bin/squashfuse_ll" "$helpers/"
mkdir "$fresh/etc"
cp -a "$work/root/etc/apptainer" "$fresh/etc/"
cp -a "$work/root/var/lib/apptainer" "$fresh/var/lib/"
# The part of Apptainer that sets a container up takes PREFIX/lib for the prefix.
ln -s ../etc ../var "$fresh/lib/"

# RPATH, not RUNPATH: libraries that libraries need must come from here as well.
patchelf=("$fresh/$libraries/$loader" --library-path "$fresh/$libraries" "$usr/bin/patchelf")
for program in "$fresh/bin/apptainer" "$helpers"/*; do
  "${patchelf[@]}" --set-interpreter "$prefix/$libraries/$loader" --force-rpath --set-rpath "$prefix/$libraries" "$program"
done
chmod -R a+rX "$fresh"
chmod 755 "$fresh"

[ ! -d "$prefix" ] || rmdir "$prefix"
mv -T "$fresh" "$prefix"
"$prefix/bin/apptainer" --version >&2 || {
  say "what was installed does not run (see above), so it is removed again"
  rm -rf "$prefix"
  exit 1
}
touch "$prefix/.complete"
