#!/usr/bin/env bash
# Installs harnesses of others that can act as agents in sandboxes. What is there is kept.
#
#   ops/agents.sh STATE_DIR
#
#   STATE_DIR/agents/mini-swe-agent   its packages for the base image's Python, and how it is started
#
# STATE_DIR/images/base must be there (make sandbox-tools).
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
ops=$(cd "$(dirname "$0")" && pwd)
state=$(cd "$1" && pwd)
agent=$state/agents/mini-swe-agent
packages=(mini-swe-agent==2.4.6 mcp)  # litellm imports mcp without asking for it
recipe=$(sha256sum "$0" | cut -c 1-16)
say() { printf 'agents: %s\n' "$*" >&2; }

[ "$(cat "$agent/.complete" 2>/dev/null)" != "$recipe" ] || exit 0
version=$(basename "$(readlink "$state/images/base/usr/bin/python3")" | tr -d '[:alpha:]')
mkdir -p "$agent"
work=$(mktemp -d "$state/agents/.building.XXXXXX")
trap 'rm -rf "$work"' EXIT

say "installing ${packages[*]} for Python $version"
"$ops/python-packages.sh" "$version" "$work/packages" "${packages[@]}"
rm -rf "$agent/packages"
mv "$work/packages" "$agent/packages"

# Its packages are on no path but its own: what the agent runs must find the repository's, not the harness's.
cat >"$agent/start.py" <<'EOF'
import runpy, sys
sys.path.insert(0, "/opt/prorl-agent/packages")
sys.argv[0] = "mini"
runpy.run_module("minisweagent.run.mini", run_name="__main__")
EOF
cat >"$agent/harness.json" <<'EOF'
{
  "argv": ["python3", "-I", "/opt/prorl-agent/start.py", "-m", "openai/policy", "-t", "{task}", "-y",
           "--exit-immediately", "-l", "0", "-o", "/tmp/mini/trajectory.json"],
  "environment": {
    "OPENAI_API_BASE": "{address}/v1",
    "OPENAI_BASE_URL": "{address}/v1",
    "OPENAI_API_KEY": "{key}",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_GLOBAL_CONFIG_DIR": "/tmp/mini",
    "MSWEA_SILENT_STARTUP": "1"
  }
}
EOF
"$state/images/base/usr/bin/python3" -m compileall -q "$agent/packages" >/dev/null 2>&1 || true
chmod -R a+rX "$agent"
echo "$recipe" >"$agent/.complete"
say "$(du -sh "$agent" | cut -f 1) in $agent"
