#!/usr/bin/env bash
# Downloads packages of Debian or Ubuntu with all that they depend on, as if nothing was installed. Needs no root, and
# leaves the system's package lists and its dpkg database alone.
#
#   ops/debian-packages.sh SUITE DIR PACKAGE...
#
#   SUITE   sid, bookworm, ...; `own` is this machine's release
#   DIR     where the .deb files go
#
# The archive is the one that this machine's apt uses, the entry of its own release first. To use another one, set
# ARCHIVE_URI (its root) and ARCHIVE_KEYRING (the file with its keys).
# Exit code 3: this machine cannot do it. 4: the archive does not deliver these packages now.
set -euo pipefail

[ $# -ge 3 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
suite=$1 target=$2
shift 2

fail() { local code=$1; shift; printf 'debian-packages: %s\n' "$*" >&2; exit "$code"; }

ID='' VERSION_CODENAME='' PRETTY_NAME='this system'
[ ! -r /etc/os-release ] || . /etc/os-release
case $ID in
  debian) components=main ;;
  ubuntu) components='main universe' ;;
  *) fail 3 "$PRETTY_NAME is neither Debian nor Ubuntu" ;;
esac
for program in apt-get apt-config dpkg; do
  command -v "$program" >/dev/null || fail 3 "$program is missing"
done
[ "$suite" != own ] || suite=$VERSION_CODENAME
keyring=${ARCHIVE_KEYRING:-/usr/share/keyrings/$ID-archive-keyring.gpg}
[ -r "$keyring" ] || fail 3 "$keyring is missing: install the package $ID-archive-keyring, or set ARCHIVE_KEYRING"

# `indextargets` also understands what has never been updated, and every form that sources can have.
archives() {
  [ -z "${ARCHIVE_URI:-}" ] || { echo "$ARCHIVE_URI"; return; }
  apt-get indextargets --no-release-info --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
    sort -u | awk -v own="$VERSION_CODENAME" '{ print ($1 != own), $2 }' | sort | cut -d ' ' -f 2 | awk '!seen[$0]++'
}

places=$(archives)
[ -n "$places" ] || fail 3 "apt on this machine knows no archive: set ARCHIVE_URI"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{state/lists/partial,cache/archives/partial,empty} "$target"
touch "$work/state/status"

# The machine's ways to fetch (proxies, certificates) hold here too; its hooks, pins and chosen release do not.
{
  apt-config dump | grep '^Acquire::' | grep -v '^Acquire::IndexTargets' || true
  printf '%s "%s";\n' \
    Dir::State "$work/state" Dir::State::status "$work/state/status" Dir::Cache "$work/cache" \
    Dir::Etc::main "$work/empty/none" Dir::Etc::parts "$work/empty" \
    Dir::Etc::sourcelist "$work/sources.list" Dir::Etc::sourceparts "$work/empty" \
    Dir::Etc::preferences "$work/empty/none" Dir::Etc::preferencesparts "$work/empty" \
    APT::Sandbox::User '' APT::Install-Recommends 0 Acquire::Languages none Acquire::Retries 3 Debug::NoLocking 1
} >"$work/apt.conf"
export APT_CONFIG=$work/apt.conf DEBIAN_FRONTEND=noninteractive

for place in $places; do
  echo "deb [signed-by=$keyring] $place $suite $components" >"$work/sources.list"
  if apt-get -q update >>"$work/log" 2>&1 &&
    apt-get -q -y --download-only install "$@" >>"$work/log" 2>&1; then
    mv "$work"/cache/archives/*.deb "$target"
    exit 0
  fi
done
grep -E '^(E:|W:|Err:| .*(Depends|candidate))' "$work/log" | tail -n 8 | sed 's/^/  /' >&2 || true
fail 4 "no archive of this machine delivers $* in suite $suite now"
