# ==== redis
#!/bin/bash
#SBATCH --job-name=whole.redis.66bda64c
#SBATCH --signal=B:USR1@60
#SBATCH --partition=cpu
#SBATCH --account=lab
#SBATCH --time=1-00:00
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=16G
#SBATCH --output='/shared/whole run/logs/%x-%j.log'
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --qos=normal
set -e
module load python/3.11
source /opt/venv/bin/activate
export PRORL_NAMESPACE=team
export PRORL_LEASE_MS=20000
if [ -z "${PRORL_SANDBOX_TOOLS:-}" ] && [ -d '/shared/whole run/tools' ]; then export PRORL_SANDBOX_TOOLS='/shared/whole run/tools'; fi
export PRORL_STATE="/local/prorl-$UID/whole-66bda64c/$SLURMD_NODENAME"
exec /opt/venv/bin/python -m slurm.redis_task --shared '/shared/whole run' --interface ib0 --tls -- --maxmemory 12gb

# ==== api
#!/bin/bash
#SBATCH --job-name=whole.api.66bda64c
#SBATCH --signal=B:TERM@60
#SBATCH --partition=cpu
#SBATCH --account=lab
#SBATCH --time=1-00:00
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --output='/shared/whole run/logs/%x-%j.log'
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --qos=normal
set -e
module load python/3.11
source /opt/venv/bin/activate
export PRORL_NAMESPACE=team
export PRORL_LEASE_MS=20000
if [ -z "${PRORL_SANDBOX_TOOLS:-}" ] && [ -d '/shared/whole run/tools' ]; then export PRORL_SANDBOX_TOOLS='/shared/whole run/tools'; fi
export PRORL_STATE="/local/prorl-$UID/whole-66bda64c/$SLURMD_NODENAME"
exec /opt/venv/bin/python -m slurm.api_task --shared '/shared/whole run'

# ==== policy
#!/bin/bash
#SBATCH --job-name=whole.policy.66bda64c
#SBATCH --array=0-1
#SBATCH --signal=B:TERM@60
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --time=1-00:00
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --gres=gpu:4
#SBATCH --output='/shared/whole run/logs/%x-%A_%a.log'
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --qos=normal
set -e
module load python/3.11
source /opt/venv/bin/activate
export PRORL_NAMESPACE=team
export PRORL_LEASE_MS=20000
if [ -z "${PRORL_SANDBOX_TOOLS:-}" ] && [ -d '/shared/whole run/tools' ]; then export PRORL_SANDBOX_TOOLS='/shared/whole run/tools'; fi
export PRORL_STATE="/local/prorl-$UID/whole-66bda64c/$SLURMD_NODENAME"
exec /opt/venv/bin/python -m slurm.backend_task --rendezvous '/shared/whole run/rendezvous' --pool policy --health /health -- vllm serve 'my model' --host '{host}' --port '{port}'

# ==== wide
#!/bin/bash
#SBATCH --job-name=whole.wide.66bda64c
#SBATCH --array=0-0
#SBATCH --signal=B:TERM@60
#SBATCH --partition=cpu
#SBATCH --account=lab
#SBATCH --time=1-00:00
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --output='/shared/whole run/logs/%x-%A_%a.log'
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --qos=normal
set -e
module load python/3.11
source /opt/venv/bin/activate
export PRORL_NAMESPACE=team
export PRORL_LEASE_MS=20000
if [ -z "${PRORL_SANDBOX_TOOLS:-}" ] && [ -d '/shared/whole run/tools' ]; then export PRORL_SANDBOX_TOOLS='/shared/whole run/tools'; fi
export PRORL_STATE="/local/prorl-$UID/whole-66bda64c/$SLURMD_NODENAME"
exec /opt/venv/bin/python -m slurm.backend_task --rendezvous '/shared/whole run/rendezvous' --pool policy --health /health -- srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --overlap --cpus-per-task=8 --kill-on-bad-exit=1 /opt/venv/bin/python -P -m slurm.servers.rank 'serve --host '"'"'{host}'"'"' --rank '"'"'{rank}'"'"'' 'join '"'"'{host}:{master_port}'"'"''

# ==== node
#!/bin/bash
#SBATCH --job-name=whole.node.66bda64c
#SBATCH --array=0-15%8
#SBATCH --signal=B:USR1@600
#SBATCH --partition=cpu
#SBATCH --account=lab
#SBATCH --time=1-00:00
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=120G
#SBATCH --output='/shared/whole run/logs/%x-%A_%a.log'
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --qos=normal
#SBATCH --exclusive
set -e
module load python/3.11
source /opt/venv/bin/activate
export PRORL_NAMESPACE=team
export PRORL_LEASE_MS=20000
if [ -z "${PRORL_SANDBOX_TOOLS:-}" ] && [ -d '/shared/whole run/tools' ]; then export PRORL_SANDBOX_TOOLS='/shared/whole run/tools'; fi
export PRORL_STATE="/local/prorl-$UID/whole-66bda64c/$SLURMD_NODENAME"
exec /opt/venv/bin/python -m slurm.task --kind node --rendezvous '/shared/whole run/rendezvous' --processes 4 --slots 64 --sandbox bubblewrap --grace-s 570 --idle-exit-s 900 -- --tokenizer /models/policy --handlers human_eval

# ==== eval
#!/bin/bash
#SBATCH --job-name=whole.eval.66bda64c
#SBATCH --array=0-3
#SBATCH --signal=B:TERM@180
#SBATCH --partition=cpu
#SBATCH --account=lab
#SBATCH --time=1-00:00
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --output='/shared/whole run/logs/%x-%A_%a.log'
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --qos=normal
set -e
module load python/3.11
source /opt/venv/bin/activate
export PRORL_NAMESPACE=team
export PRORL_LEASE_MS=20000
if [ -z "${PRORL_SANDBOX_TOOLS:-}" ] && [ -d '/shared/whole run/tools' ]; then export PRORL_SANDBOX_TOOLS='/shared/whole run/tools'; fi
export PRORL_STATE="/local/prorl-$UID/whole-66bda64c/$SLURMD_NODENAME"
mkdir -p "/local"
exec apptainer exec --bind '/shared/whole run' --bind "/local" /images/judge.sif /opt/venv/bin/python -m slurm.task --kind eval --rendezvous '/shared/whole run/rendezvous' --processes 1 --slots 8 --sandbox none --grace-s 150

# ==== watch
#!/bin/bash
#SBATCH --job-name=whole.watch.66bda64c
#SBATCH --signal=B:TERM@60
#SBATCH --partition=cpu
#SBATCH --account=lab
#SBATCH --time=3-0
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --output='/shared/whole run/logs/%x-%j.log'
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --qos=normal
set -e
module load python/3.11
source /opt/venv/bin/activate
export PRORL_NAMESPACE=team
export PRORL_LEASE_MS=20000
if [ -z "${PRORL_SANDBOX_TOOLS:-}" ] && [ -d '/shared/whole run/tools' ]; then export PRORL_SANDBOX_TOOLS='/shared/whole run/tools'; fi
export PRORL_STATE="/local/prorl-$UID/whole-66bda64c/$SLURMD_NODENAME"
exec /opt/venv/bin/python -m slurm.supervisor.task --shared '/shared/whole run'
