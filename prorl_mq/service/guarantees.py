"""Which guarantees hold here, and with what limit: a few lines, made of facts alone."""

from collections.abc import Mapping, Sequence
from typing import Final

from prorl_mq.rules.memory import INTAKE_SHARE
from prorl_mq.schema.messages import Stage
from prorl_mq.store.audit.guarantees import Facts, ServerFacts

SHARED: Final = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "ceph", "cephfs", "beegfs", "fuse.sshfs", "cifs", "smb3", "9p"}
)
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
NOTHING_LOST: Final = "a crash of any process or of the host loses nothing that was accepted"
SECOND_LOST: Final = "a crash of the host can lose the last second or two, a crash of Redis what a late fsync held back"


def lines(facts: Facts, *, file_system: str = "") -> list[str]:
    """At most seven. `file_system`: of the server's data as this machine sees it; empty: it does not."""
    server = facts.server
    return [
        f"durability   {_durability(server, file_system)}",
        f"memory       {_memory(server, facts.unacked_bytes)}",
        f"replicas     {_replicas(server)}",
        f"storage      {_storage(server, file_system)}",
        f"sandboxes    {_sandboxes(facts.limits)}",
        f"clock        {_clock(facts)}",
        f"workers      {_workers(facts.workers, facts.families)}",
    ]


def _durability(server: ServerFacts, file_system: str) -> str:
    if not server.appendonly:
        return "appendonly is off: a restart of Redis loses what was accepted since its last snapshot"
    if file_system in IN_MEMORY:
        return f"data in memory ({file_system}): a crash of the host loses all of it; give Redis a `dir` on a disk"
    return _fsync(server)


def _fsync(server: ServerFacts) -> str:
    if not server.syncs_in_rewrites:
        unsafe = "a crash of the host can lose about 30 s while the append-only file is rewritten"
        return f"fsync {server.appendfsync}, but {unsafe}: set no-appendfsync-on-rewrite to no"
    match server.appendfsync:
        case "always":
            return f"fsync always: {NOTHING_LOST}"
        case "everysec":
            late = f"; {server.late_fsyncs} fsyncs were late" if server.late_fsyncs else ""
            return f"fsync everysec: {SECOND_LOST}{late}"
        case "no":
            return "fsync no: a crash of the host can lose what the kernel has not written, about 30 s"
    return "appendonly is on; this user may not read appendfsync, on which the rest depends"


def _memory(server: ServerFacts, unacked_bytes: int) -> str:
    if server.policy != "noeviction":
        return f"{server.policy}: Redis may evict accepted work; set maxmemory-policy to noeviction"
    used, bound = f"{server.memory_bytes >> 20} MiB", f"{unacked_bytes >> 20} MiB"
    if not server.memory_limit_bytes:
        return f"{used} used, no maxmemory: the kernel may kill Redis; a run holds {bound} of results at most"
    limit = f"{server.memory_limit_bytes >> 20} MiB"
    full = " (more than there is)" if unacked_bytes > server.memory_limit_bytes else ""
    return (
        f"{used} of {limit}, above {INTAKE_SHARE:.0%} new work is refused; a run holds {bound} of results at most{full}"
    )


def _replicas(server: ServerFacts) -> str:
    if server.master:
        return f"this server is a replica of {server.master}: it takes no work, and its data may be behind"
    wait = "WAITAOF is there" if server.waitaof else "no WAITAOF"
    if not server.replicas and not server.acks:
        return f"none: work waits while Redis is down, and its disk is the only copy ({wait})"
    if server.acks:
        lacks = "; answers wait for one that is away" if server.acks > server.replicas else ""
        return f"{server.replicas}, {server.acks} confirm what is answered: a failover loses none of it{lacks}"
    needed = f"{server.replicas_needed} needed" if server.replicas_needed else "none needed"
    return f"{server.replicas}, {needed} for a write; they follow behind: a failover can lose the last writes ({wait})"


def _storage(server: ServerFacts, file_system: str) -> str:
    place = server.directory or "a directory that this user may not read"
    if not file_system:
        return f"data in {place}, not seen from this machine"
    if file_system in IN_MEMORY:
        return f"data in {place} ({file_system}, in memory): it goes with this host"
    if file_system in SHARED:
        return f"data in {place} ({file_system}, shared): another host can take over; an fsync is the file server's"
    return f"data in {place} ({file_system}, of this host): it comes back with this host alone"


def _sandboxes(limits: Mapping[str, str]) -> str:
    by_kind = {kind: sorted(node for node, each in limits.items() if each == kind) for kind in ("hard", "watchdog")}
    said = [f"hard limits on {_few(by_kind['hard'])} (control groups)"] if by_kind["hard"] else []
    if by_kind["watchdog"]:
        said.append(f"soft limits on {_few(by_kind['watchdog'])} (no control groups: a watchdog looks now and then)")
    return "; ".join(said) or "no living worker has any"


def _clock(facts: Facts) -> str:
    minutes = max(0, facts.now_ms - facts.opened_ms) / 60_000
    time = f"{minutes:.0f} min" if minutes < 60 else f"{minutes / 60:.1f} h"
    since = f"epoch {facts.epoch}, open for {time}" if facts.epoch else "no epoch is open yet"
    if facts.offset_ms:
        return f"{since}; Redis's clock has jumped, and is corrected by {facts.offset_ms / 1000:+.1f} s"
    return f"{since}; no jump of Redis's clock is being corrected"


def _workers(workers: Mapping[Stage, int], families: Sequence[str]) -> str:
    counts = ", ".join(f"{count} {stage}" for stage, count in workers.items())
    lacking = [stage for stage, count in workers.items() if not count]
    waits = f" (work waits: no {_few(lacking)})" if lacking else ""
    return f"{counts}{waits}; families announced: {_few(families) or 'none'}"


def _few(names: Sequence[str]) -> str:
    """At most four names."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
