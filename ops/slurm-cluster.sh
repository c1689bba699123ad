#!/usr/bin/env bash
# A real Slurm on this machine, with several virtual nodes: Debian's daemons, every file below one directory.
#
#   ops/slurm-cluster.sh install           the Debian packages, where they are missing (as root)
#   ops/slurm-cluster.sh up ROOT [NODES] [CPUS] [TRACKING]    prints the line that makes its commands yours
#                                          (3 nodes of 8 CPUs; a task's processes are known by linuxproc, by pgid, or, as root, by cgroup)
#   ops/slurm-cluster.sh lose ROOT NAME    a node dies: its daemon and all that it runs
#   ops/slurm-cluster.sh part ROOT NAME    a node is cut off: its daemon dies, what it runs continues
#   ops/slurm-cluster.sh node ROOT NAME    a lost node comes back
#   ops/slurm-cluster.sh control ROOT      the controller dies, and starts again with its state
#   ops/slurm-cluster.sh down ROOT         ends its jobs and daemons
#
# As root or as a plain user; a plain user's nodes run that user's jobs only. Each daemon's process id is in
# ROOT/run/NAME. ROOT must be short: the path of a Unix socket ends at 107 bytes.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
export PATH=$PATH:/usr/sbin:/sbin

say() { printf 'slurm-cluster: %s\n' "$*" >&2; }

install() {
  local -a missing=()
  local name policy=/usr/sbin/policy-rc.d made_policy='' done_it=1
  for name in slurmctld slurmd munged sbatch; do
    command -v $name >/dev/null || missing+=($name)
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "missing: ${missing[*]} (Debian: slurmctld slurmd slurm-client munge); an administrator can install them"
    return 1
  fi
  if [ ! -e $policy ]; then # the packages' own services must not start
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
    made_policy=1
  fi
  local -a get=(apt-get install -y -q --no-install-recommends slurmctld slurmd slurm-client munge)
  DEBIAN_FRONTEND=noninteractive "${get[@]}" >&2 ||
    { apt-get update -q >&2 && DEBIAN_FRONTEND=noninteractive "${get[@]}" >&2; } || done_it=
  [ -z "$made_policy" ] || rm -f $policy
  if command -v systemctl >/dev/null; then
    systemctl disable munge slurmd slurmctld >/dev/null 2>&1 || true
  fi
  [ -n "$done_it" ] || { say "apt-get could not install Slurm"; return 1; }
}

free_ports() { # the first of N ports in a row that nobody listens on
  python3 - "$1" <<'PYTHON'
import random, socket, sys

count = int(sys.argv[1])
while True:
    base = random.randrange(20000, 32000 - count)
    try:
        for port in range(base, base + count):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
    except OSError:
        continue
    print(base)
    break
PYTHON
}

alive() { # a process that has ended but was not collected yet is not alive
  local state
  state=$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) || return 1
  [ -n "$state" ] && [ "$state" != Z ]
}

environment() { tr '\0' '\n' 2>/dev/null <"/proc/$1/environ"; } 2>/dev/null

ours() { # is it still the process that was started for this cluster?
  alive "$1" && environment "$1" | grep -qxF "SLURM_CONF=$SLURM_CONF"
}

spawn() { # NAME COMMAND...: in the background, in a session of its own
  local name=$1
  shift
  setsid "$@" </dev/null >>"$root/log/$name.out" 2>&1 &
  echo $! >"$root/run/$name"
}

await() { # WHAT SECONDS COMMAND...
  local what=$1 left=$(($2 * 20))
  shift 2
  until "$@"; do
    [ $left -gt 0 ] || { say "$what did not come up; see $root/log"; return 1; }
    left=$((left - 1))
    sleep 0.05
  done
}

answers() { scontrol ping 2>/dev/null | grep -q UP; }
idle() { [ "$(sinfo -h -o %T 2>/dev/null | sort -u)" = idle ]; }

node() { spawn "$1" slurmd -D -N "$1"; }

configure() { # NODES CPUS TRACKING
  local conf port word
  conf=$(<"$here/slurm.conf.in")
  port=$(free_ports $(($1 + 1)))
  for word in "ROOT $root" "HOST $(hostname -s)" "USER $(id -un)" "NODES $1" "CPUS $2" "TRACKING $3" "PORT $port" \
    "FIRST $((port + 1))" "LAST $((port + $1))"; do
    conf=${conf//"@${word%% *}@"/"${word#* }"}
  done
  printf '%s\n' "$conf" >"$SLURM_CONF"
  # From 24.05 on a node needs a cgroup plugin or this word, which older ones do not know.
  rm -f "$root/cgroup.conf"
  if [ "$3" = cgroup ]; then
    printf 'CgroupMountpoint=/sys/fs/cgroup\nCgroupPlugin=cgroup/%s\n' \
      "$([ -e /sys/fs/cgroup/cgroup.controllers ] && echo v2 || echo v1)" >"$root/cgroup.conf"
  elif [ "$(printf '%s\n' 24.05 "$(slurmd -V | grep -oE '[0-9]+\.[0-9]+' | head -n 1)" | sort -V | head -n 1)" = 24.05 ]; then
    echo CgroupPlugin=disabled >"$root/cgroup.conf"
  fi
}

up() {
  local nodes=${1:-3} cpus=${2:-8} tracking=${3:-linuxproc} name pid
  for pid in "$root"/run/*; do
    if [ -e "$pid" ] && ours "$(<"$pid")"; then
      say "a cluster runs in $root already"
      echo "export SLURM_CONF=$SLURM_CONF"
      return 0
    fi
  done
  mkdir -p "$root"/{munge,state,spool,log,run}
  rm -rf "$root"/state/* "$root"/spool/* "$root"/run/*
  [ -s "$root/munge/key" ] || (umask 077 && head -c 128 /dev/urandom >"$root/munge/key")
  configure "$nodes" "$cpus" "$tracking"
  # --force: it would else refuse to work below a directory that is closed to others
  spawn munged munged --foreground --force --socket="$root/munge/socket" --key-file="$root/munge/key" \
    --pid-file="$root/munge/pid" --log-file="$root/munge/log" --seed-file="$root/munge/seed"
  await munged 20 test -S "$root/munge/socket"
  spawn slurmctld slurmctld -D -c -i
  await slurmctld 20 answers
  for name in $(seq -f 'n%.0f' "$nodes"); do
    node "$name"
  done
  await "not all nodes: they" 30 idle
  echo "export SLURM_CONF=$SLURM_CONF"
}

end() { # NAME: TERM, and KILL after two seconds
  local pid tries=40
  pid=$(cat "$root/run/$1" 2>/dev/null) || return 0
  ours "$pid" || return 0
  kill "$pid" 2>/dev/null || return 0
  while alive "$pid"; do
    [ $tries -gt 0 ] || { kill -9 "$pid" 2>/dev/null || true; break; }
    tries=$((tries - 1))
    sleep 0.05
  done
}

kill_running() { # [NODE]
  python3 - "$root" "$SLURM_CONF" "${1:-}" <<'PYTHON'
"""Kills what the cluster's nodes run: step daemons first, for one that outlives its job would report its end.

What a job has started goes with it, though it may have left the job's session and environment.
"""
import collections, contextlib, os, pathlib, re, signal, sys, time

root, conf, node = sys.argv[1:]
log = re.compile(re.escape(root) + "/log/slurmd-" + (node or "[^/]*") + r"\.log")
marks = {f"SLURM_CONF={conf}".encode()} | ({f"SLURMD_NODENAME={node}".encode()} if node else set())


def running():
    steps, found, children = [], [], collections.defaultdict(list)
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        with contextlib.suppress(OSError):
            state, parent = (process / "stat").read_text().rpartition(") ")[2].split()[:2]
            if state == "Z":
                continue
            children[int(parent)].append(pid)
            if (process / "comm").read_text() == "slurmstepd\n":
                if any(log.fullmatch(os.readlink(fd)) for fd in (process / "fd").iterdir()):
                    steps.append(pid)
                continue
            environ = set((process / "environ").read_bytes().split(b"\0"))
            if marks <= environ and any(each.startswith(b"SLURM_JOB_ID=") for each in environ):
                found.append(pid)
    for pid in found:
        found += (child for child in children[pid] if child not in found)
    return steps + found


quiet = 0
while quiet < 3:  # a step that just starts is not seen yet
    pids = running()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    quiet = 0 if pids else quiet + 1
    time.sleep(0.05)
PYTHON
}

part() {
  local pid
  pid=$(<"$root/run/$1")
  if ours "$pid"; then kill -9 "$pid"; fi
}

control() {
  part slurmctld
  spawn slurmctld slurmctld -D -i
  await slurmctld 60 answers
}

down() {
  local name
  [ -d "$root/run" ] || return 0
  scancel --me 2>/dev/null || true
  for name in "$root"/run/n*; do
    [ ! -e "$name" ] || end "$(basename "$name")"
  done
  end slurmctld
  kill_running
  end munged
  if grep -q proctrack/cgroup "$SLURM_CONF" 2>/dev/null; then # slurmd leaves its control groups, which are empty now
    find /sys/fs/cgroup -depth -type d -path '*/slurm_n[0-9]*' -exec rmdir {} + 2>/dev/null || true
  fi
}

action=${1:-}
[ "$action" = install ] || root=$(realpath -m "${2:?usage: slurm-cluster.sh ACTION ROOT [...]; the head of the file lists the actions}")
export SLURM_CONF=${root:-}/slurm.conf
umask 022
case $action in
  install) install ;;
  up) up "${3:-}" "${4:-}" "${5:-}" ;;
  lose) part "${3:?which node?}" && kill_running "$3" ;;
  part) part "${3:?which node?}" ;;
  node) node "${3:?which node?}" ;;
  control) control ;;
  down) down ;;
  *) say "unknown action '$action': install, up, lose, part, node, control, down"; exit 2 ;;
esac
