#!/usr/bin/env bash
# Installs harnesses of others that can act as agents in sandboxes, in the versions of ops/harnesses/versions. What is
# there is kept.
#
#   ops/agents.sh STATE_DIR NAME...
#
#   NAME                  mini-swe-agent (700 MB), codex (360 MB), claude-code (360 MB), opencode (180 MB)
#   STATE_DIR/agents/NAME the program, and how it is started: what ops/harnesses/NAME has
#
# mini-swe-agent needs STATE_DIR/images/base (make sandbox-tools), the others `npm`, which only downloads: they are
# native programs.
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
state=$(cd "$1" && pwd)
shift
say() { printf 'agents: %s\n' "$*" >&2; }
case $(uname -m) in
  aarch64) machine=arm64 cpu=arm64 triple=aarch64-unknown-linux-musl ;;
  *) machine=x64 cpu=x64-baseline triple=x86_64-unknown-linux-musl ;;
esac

# unpacked PACKAGE DIRECTORY: a package of the npm registry, with no script of its own run
unpacked() {
  command -v npm >/dev/null || { say "npm is missing (Debian: npm): $1 is downloaded with it"; exit 3; }
  mkdir -p "$2"
  npm pack --silent --pack-destination "$work" "$1" >/dev/null
  tar -C "$2" --strip-components 1 --no-same-owner -xzf "$work"/*.tgz
  rm "$work"/*.tgz
}

program() {  # NAME VERSION DIRECTORY: the program itself
  case $1 in
    mini-swe-agent)
      python=$(basename "$(readlink "$state/images/base/usr/bin/python3")" | tr -d '[:alpha:]')
      # litellm imports mcp without asking for it
      "$here/ops/python-packages.sh" "$python" "$3/packages" "mini-swe-agent==$2" mcp
      "$state/images/base/usr/bin/python3" -m compileall -q "$3/packages" >/dev/null 2>&1 || true
      ;;
    codex)
      unpacked "@openai/codex@$2-linux-$machine" "$work/unpacked"
      mv "$work/unpacked/vendor/$triple"/* "$3"
      rm -rf "$3/codex-resources"  # voice, and a bubblewrap
      ;;
    claude-code) unpacked "@anthropic-ai/claude-code-linux-$machine@$2" "$3" ;;
    opencode) unpacked "opencode-linux-$cpu@$2" "$3" ;;
    *) say "there is no harness $1 in ops/harnesses"; exit 2 ;;
  esac
}

for name; do
  agent=$state/agents/$name
  version=$(sed -n "s/^$name //p" "$here/ops/harnesses/versions")
  recipe=$({ echo "$version"; cat "$0" "$here/ops/harnesses/$name"/*; } | sha256sum | cut -c 1-16)
  [ "$(cat "$agent/.complete" 2>/dev/null)" != "$recipe" ] || continue
  mkdir -p "$state/agents"
  work=$(mktemp -d "$state/agents/.building.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  say "installing $name $version"
  mkdir "$work/agent"
  cp "$here/ops/harnesses/$name"/* "$work/agent"
  program "$name" "$version" "$work/agent"
  chmod -R a+rX,go-w "$work/agent"
  echo "$recipe" >"$work/agent/.complete"
  rm -rf "$agent"
  mv "$work/agent" "$agent"
  rm -rf "$work"
  say "$(du -sh "$agent" | cut -f 1) in $agent"
done
