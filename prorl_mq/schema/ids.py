"""Identifiers: names joined by colons, so that an id says where its object belongs."""

from typing import NamedTuple, NewType

from prorl_mq.errors import NotFound

TenantId = NewType("TenantId", str)
RunRef = NewType("RunRef", str)  # tenant:run
BatchRef = NewType("BatchRef", str)  # tenant:run:batch
GroupRef = NewType("GroupRef", str)  # tenant:run:group
JobRef = NewType("JobRef", str)  # tenant:run:group:index
Token = NewType("Token", str)  # NUMBER-SERVER.COUNT of an epoch, compared for equality only
EntryId = NewType("EntryId", str)

DEFAULT_TENANT = TenantId("default")


class JobParts(NamedTuple):
    """The names inside a `JobRef`."""

    tenant: TenantId
    run: str
    group: str
    sample: int

    @property
    def run_ref(self) -> RunRef:
        return RunRef(f"{self.tenant}:{self.run}")

    @property
    def group_ref(self) -> GroupRef:
        return GroupRef(f"{self.tenant}:{self.run}:{self.group}")


def run_ref(tenant: str, run: str) -> RunRef:
    return RunRef(f"{tenant}:{run}")


def batch_ref(run: RunRef, batch: str) -> BatchRef:
    return BatchRef(f"{run}:{batch}")


def group_ref(run: RunRef, group: str) -> GroupRef:
    return GroupRef(f"{run}:{group}")


def job_ref(group: GroupRef, index: int) -> JobRef:
    return JobRef(f"{group}:{index}")


def pool_ref(tenant: str, pool: str) -> str:
    """A pool belongs to a tenant: prompts of other tenants never reach its backends."""
    return f"{tenant}:{pool}"


def job_parts(ref: JobRef) -> JobParts:
    """Raises `ValueError` for anything that is not a job's id."""
    tenant, run, group, index = ref.split(":")
    return JobParts(TenantId(tenant), run, group, int(index))


def asked_job(ref: JobRef) -> JobParts:
    """The parts of an id that somebody has sent. Raises `NotFound` for anything that is no job's id."""
    try:
        parts = job_parts(ref)
        if parts.sample >= 0 and job_ref(parts.group_ref, parts.sample) == ref:
            return parts
    except ValueError:
        pass
    raise NotFound(f"{public(ref)!r} is no job id; one reads run:group:index")


def group_of(ref: JobRef) -> GroupRef:
    return GroupRef(ref.rpartition(":")[0])


def run_of(ref: GroupRef | BatchRef) -> RunRef:
    return RunRef(ref.rpartition(":")[0])


def tenant_of(ref: str) -> TenantId:
    """The tenant that a run, batch, group, job or pool belongs to."""
    return TenantId(ref.partition(":")[0])


def public(ref: str) -> str:
    """The id as its tenant sees it: without the tenant's name."""
    return ref.partition(":")[2]


EPOCH_MS = 1 << 41  # how far apart the ids of two epochs lie: above the milliseconds of this century


def time_of(entry: str) -> int:
    """The service's time, in ms, at which an entry was added to a stream, from the entry's id."""
    return int(entry.partition("-")[0]) % EPOCH_MS


def id_at(ms: int, entry: str) -> int:
    """The first half of the ids that were given at a time, in ms, in the epoch of an entry."""
    return int(entry.partition("-")[0]) // EPOCH_MS * EPOCH_MS + ms
