"""Room that quotas leave, and the quota that holds a run back. Pure."""

import msgspec

from prorl_mq.rules import memory
from prorl_mq.rules.fair_share import Path, Quotas
from prorl_mq.rules.memory import Memory
from prorl_mq.schema.ids import RunRef, TenantId, tenant_of
from prorl_mq.schema.items import Wanted
from prorl_mq.schema.settings import Book


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage that quotas count. Runs that are missing have none of it."""

    jobs: dict[RunRef, int]  # in flight, of every run
    groups: dict[RunRef, int]  # admitted and not acknowledged, of every run
    bytes: dict[RunRef, int]  # of closed groups that are not acknowledged, of the runs that were asked for

    sizes: dict[RunRef, int] = {}  # bytes of a sample's result; runs that have none yet are missing
    memory: Memory = Memory(0, 0)

    def jobs_of(self, tenant: str) -> int:
        return sum(jobs for run, jobs in self.jobs.items() if tenant_of(run) == tenant)

    def full(self, book: Book) -> dict[TenantId, int]:
        """The tenants that hold more than they may, each with its bytes: those of the runs that were asked for."""
        bounds = _bounded(book)
        held = dict.fromkeys(bounds, 0)
        for run, size in self.bytes.items():
            if (tenant := tenant_of(run)) in held:
                held[tenant] += size
        return {tenant: size for tenant, size in held.items() if size > bounds[tenant]}

    def unknown(self, book: Book) -> list[RunRef]:
        """The other runs of tenants whose bytes have a bound, with groups that count."""
        bounded = _bounded(book)
        return [run for run in self.groups if tenant_of(run) in bounded and run not in self.bytes]


def _bounded(book: Book) -> dict[TenantId, int]:
    """The bound of each tenant whose bytes have one."""
    bounds = {tenant: settings.max_unacked_bytes for tenant, settings in book.tenants.items()}
    return {tenant: most for tenant, most in bounds.items() if most is not None}


def allowed(book: Book, usage: Usage) -> Quotas:
    """Room that the settings still leave the runs that `usage` has the bytes of, and their tenants."""
    most: dict[Path, int] = {}
    left: dict[Path, int] = {}
    groups: dict[Path, int] = {}
    full = usage.full(book)
    for run, held in usage.bytes.items():
        tenant, name = run.split(":")
        settings, jobs = book.run(run), book.tenant(TenantId(tenant)).max_jobs
        if jobs is not None and (tenant,) not in most:
            most[tenant,], left[tenant,] = jobs, jobs - usage.jobs_of(tenant)
        if settings.max_jobs is not None:
            most[tenant, name], left[tenant, name] = settings.max_jobs, settings.max_jobs - usage.jobs.get(run, 0)
        if held > memory.unacked_limit(settings, usage.memory) or tenant in full:
            groups[tenant, name] = 0
        elif settings.max_unacked_groups is not None:
            groups[tenant, name] = settings.max_unacked_groups - usage.groups.get(run, 0)
    room = memory.room(usage.memory, memory.expected(usage.jobs, usage.sizes))
    sizes = {tuple(run.split(":")): usage.sizes.get(run, memory.FIRST_BYTES) for run in usage.bytes}
    return Quotas(most=most, jobs=left, groups=groups, room=room, sizes=sizes)


def why_held(book: Book, usage: Usage, quotas: Quotas, run: RunRef, group: Wanted) -> str | None:
    """Which of the quotas that are `allowed` holds a run's next group back, and what helps. None: no one does."""
    tenant, name = run.split(":")
    path = (tenant, name, "")
    barrier = quotas.barrier(path, group)
    if barrier is None:
        return None
    if quotas.no_room(path, group):
        return memory.why_no_room(usage.memory, memory.expected(usage.jobs, usage.sizes))
    for node, owner in ((path[:2], "run"), (path[:1], "tenant")):
        most = quotas.most.get(node, group.wanted)
        if group.wanted > most:
            return f"its next group has {group.wanted} samples and the {owner}'s max_jobs is {most}: raise it"
        if barrier == node:
            used = most - quotas.jobs[node]
            return f"{used} of the {owner}'s at most {most} jobs are in flight, and its next group has {group.wanted}"
    return _why_unacknowledged(book, usage, run)


def _why_unacknowledged(book: Book, usage: Usage, run: RunRef) -> str:
    settings, held = book.run(run), usage.bytes[run]
    most_bytes = memory.unacked_limit(settings, usage.memory)
    if held > most_bytes:
        return (
            f"{held} bytes of results are not acknowledged: acknowledge them, or raise max_unacked_bytes ({most_bytes})"
        )
    tenant = tenant_of(run)
    if (of_tenant := usage.full(book).get(tenant)) is not None:
        return why_tenant_full(of_tenant, book.tenant(tenant).max_unacked_bytes)
    used, most = usage.groups.get(run, 0), settings.max_unacked_groups
    return (
        f"{used} of at most {most} groups run or are not acknowledged: acknowledge results, or raise max_unacked_groups"
    )


def why_tenant_full(held: int, most: int | None) -> str:
    """Says that all runs of a tenant hold too much, and what helps."""
    return (
        f"{held} bytes of results are not acknowledged in all runs of its tenant: acknowledge them, or have the "
        f"operator raise the tenant's max_unacked_bytes ({most})"
    )
