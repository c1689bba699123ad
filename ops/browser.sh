#!/usr/bin/env bash
# Puts what the tests of the web page need below one directory: a headless Chromium, two fonts, and axe-core, which
# finds faults of accessibility. Installs nothing on the system and needs no root. Running it again does nothing.
#
#   ops/browser.sh STATE_DIR        (downloads 150 MB, keeps STATE_DIR/browser)
#
# Chromium is that of this machine's own release of Debian, with the libraries that it was built for. axe-core comes from
# `npm`. Exit code 3: this machine cannot have it. 4: the archive does not deliver it now. (ops/debian-packages.sh says
# how to name another archive.)
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
ops=$(cd "$(dirname "$0")" && pwd)
axe=axe-core@4.14.1
made="2 $axe"
mkdir -p "$1"
prefix=$(realpath "$1")/browser
say() { printf 'browser: %s\n' "$*" >&2; }

[ "$(cat "$prefix/.complete" 2>/dev/null)" != "$made" ] || exit 0
command -v npm >/dev/null || { say "npm is missing (Debian: npm): axe-core is installed with it"; exit 3; }
work=$(mktemp -d)
fresh=$prefix.new.$$
trap 'rm -rf "$work" "$fresh"' EXIT
say "unpacking Chromium into $prefix"
"$ops/debian-packages.sh" own "$work/packages" chromium-headless-shell fonts-inter fonts-dejavu-core
for package in "$work"/packages/*.deb; do
  dpkg-deb -x "$package" "$work/root"
done
npm pack --silent --pack-destination "$work" "$axe" >/dev/null
tar -C "$work" -xzf "$work"/axe-core-*.tgz package/axe.min.js

libraries=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo "$(uname -m)-linux-gnu")
mkdir -p "$fresh/lib" "$fresh/fonts"
cp -a "$work/root/usr/lib/chromium" "$fresh/"
for place in "$work/root/lib/$libraries" "$work/root/usr/lib/$libraries" "$work/root/usr/lib/$libraries/pulseaudio"; do
  [ ! -d "$place" ] || cp -a "$place"/*.so* "$fresh/lib/"
done
rm -f "$fresh"/lib/libLLVM*  # for graphics cards
find "$work/root/usr/share/fonts" \( -name Inter-Regular.otf -o -name Inter-Medium.otf -o -name Inter-SemiBold.otf -o -name Inter-Bold.otf \) -exec cp {} "$fresh/fonts/" \;
find "$work/root/usr/share/fonts" -name 'DejaVuSans*.ttf' -exec cp {} "$fresh/fonts/" \;
cp "$work/package/axe.min.js" "$fresh/"

cat >"$fresh/fonts.conf" <<END
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir prefix="relative">fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
  <alias binding="strong"><family>system-ui</family><prefer><family>Inter</family></prefer></alias>
  <alias binding="strong"><family>sans-serif</family><prefer><family>Inter</family></prefer></alias>
  <alias binding="strong"><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
END
cat >"$fresh/chromium-headless" <<'END'
#!/bin/sh
here=$(dirname "$(realpath "$0")")
export LD_LIBRARY_PATH="$here/lib" FONTCONFIG_FILE="$here/fonts.conf" XDG_CACHE_HOME="$here/cache"
exec "$here/chromium/chromium-headless-shell" "$@"
END
chmod 755 "$fresh/chromium-headless"
"$fresh/chromium-headless" --version >&2 || { say "what was unpacked does not run (see above)"; exit 1; }
rm -rf "$prefix"
mv -T "$fresh" "$prefix"
echo "$made" >"$prefix/.complete"
