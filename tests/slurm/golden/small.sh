# ==== node
#!/bin/bash
#SBATCH --job-name=small.node.862f6816
#SBATCH --array=0-0
#SBATCH --signal=B:TERM@180
#SBATCH --time=01:00:00
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --output=/shared/small/logs/%x-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
set -e
export PRORL_NAMESPACE=prorl
export PRORL_LEASE_MS=15000
if [ -z "${PRORL_SANDBOX_TOOLS:-}" ] && [ -d /shared/small/tools ]; then export PRORL_SANDBOX_TOOLS=/shared/small/tools; fi
export PRORL_STATE="${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/prorl-$UID/small-862f6816/$SLURMD_NODENAME"
exec /opt/venv/bin/python -m slurm.task --kind node --rendezvous /shared/small/rendezvous --processes 1 --slots 8 --sandbox bubblewrap --grace-s 150
