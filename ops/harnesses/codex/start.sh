# Starts Codex: its home is made first, and what the rollout decides goes in front of config.toml.
set -eu
mkdir -p "$CODEX_HOME"
cp /opt/prorl-agent/config.toml "$CODEX_HOME"
exec /opt/prorl-agent/bin/codex exec --json --ephemeral --skip-git-repo-check \
  -c "model_providers.gateway.base_url=\"$GATEWAY_URL\"" -c "model_context_window=$GATEWAY_CONTEXT" -- "$1"
