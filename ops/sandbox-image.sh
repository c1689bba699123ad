#!/usr/bin/env bash
# Builds the base image of Apptainer sandboxes from Debian packages of this machine's release, without a registry.
#
#   ops/sandbox-image.sh STATE_DIR
#
#   STATE_DIR/images/base       the image as a directory: what sandboxes run
#   STATE_DIR/images/base.sif   the same as one file, to carry to other machines
#
# It holds Python with IPython and ipykernel, git and procps. STATE_DIR/apptainer must be installed. An image that this
# very script has built is kept. Exit code 3: this machine cannot build it. 4: the archive does not deliver packages now.
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
ops=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/images"
state=$(cd "$1" && pwd)
images=$(cd "$1/images" && pwd -P)
apptainer=$state/apptainer/bin/apptainer
packages=('?essential' bash ca-certificates git mawk procps psmisc python3)
python_packages=(ipykernel 'ipython>=8.12')
recipe=$(sha256sum "$0" | cut -c 1-16)
say() { printf 'sandbox-image: %s\n' "$*" >&2; }

[ "$(cat "$images/.complete" 2>/dev/null)" != "$recipe" ] || exit 0
unshare --user true 2>/dev/null || {
  say "this user may not make user namespaces, so no container can start: see sysctl user.max_user_namespaces"
  exit 3
}

work=$(mktemp -d "$images/.building.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
export APPTAINER_TMPDIR=$work APPTAINER_CACHEDIR=$work/cache APPTAINER_CONFIGDIR=$work/config

unpack() {
  local name package
  mkdir -p "$root"/{usr,etc,dev,proc,sys,run,tmp,var/tmp,home,root,opt,mnt,media,srv}
  for name in bin sbin lib lib64; do
    mkdir -p "$root/usr/$name"
    ln -s "usr/$name" "$root/$name"
  done
  for package in "$work"/packages/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink --no-same-owner \
      --exclude ./usr/share/doc --exclude ./usr/share/man --exclude ./usr/share/locale --exclude ./usr/share/info
  done
}

# What the packages' own scripts would have done, as far as anything here needs it.
settle() {
  local name
  cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
  cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
  cp "$root/usr/share/base-files/nsswitch.conf" "$root/etc/nsswitch.conf" 2>/dev/null ||
    printf '%s: files\n' passwd group >"$root/etc/nsswitch.conf"
  for name in awk:mawk sh:dash which:which.debianutils; do
    [ -e "$root/usr/bin/${name%:*}" ] || ln -s "${name#*:}" "$root/usr/bin/${name%:*}"
  done
  mkdir -p "$root/etc/ssl/certs"
  find "$root/usr/share/ca-certificates" -name '*.crt' -exec cat {} + >"$root/etc/ssl/certs/ca-certificates.crt"
  touch "$root/etc/hosts" "$root/etc/resolv.conf"
  chmod -R a+rX,u+w "$root"
  chmod 1777 "$root/tmp" "$root/var/tmp"
}

install_python_packages() {
  local version target
  version=$(basename "$(readlink "$root/usr/bin/python3")" | tr -d '[:alpha:]')
  target=$root/usr/local/lib/python$version/dist-packages
  "$ops/python-packages.sh" "$version" "$target" "${python_packages[@]}"
  chmod -R a+rX "$root/usr/local"
}

say "building $images/base: packages"
"$ops/debian-packages.sh" own "$work/packages" "${packages[@]}"
unpack
settle
say "building $images/base: IPython and ipykernel"
install_python_packages
say "building $images/base: directory and SIF file"
"$apptainer" --silent build --sandbox "$work/base" "$root"
# Bytecode halves the start of whatever runs Python; the linker's cache is what finds libraries by their names.
"$apptainer" --silent exec --userns --containall --no-home --pwd / --writable "$work/base" sh -c \
  'ldconfig; python3 -m compileall -q -j 0 /usr/lib/python3* /usr/local/lib/python3*; python3 -c "import IPython, ipykernel"'
"$apptainer" --silent build --mksquashfs-args '-comp zstd -Xcompression-level 3' "$work/base.sif" "$work/base"
chmod 755 "$work/base"
chmod 644 "$work/base.sif"

[ ! -e "$images/base" ] || mv "$images/base" "$work/former"
mv "$work/base" "$images/base"
mv "$work/base.sif" "$images/base.sif"
echo "$recipe" >"$images/.complete"
say "$(du -sh "$images/base" | cut -f 1) in $images/base, $(du -h "$images/base.sif" | cut -f 1) in base.sif"
