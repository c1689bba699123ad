"""The operations of the HTTP interface, one module for each kind of thing."""

from api.operations import Operation
from api.routes import backends, batches, cancels, groups, jobs, looking, probes, results, runs, turns, watching

OPERATIONS: tuple[Operation, ...] = (
    *batches.OPERATIONS,
    *runs.OPERATIONS,
    *results.OPERATIONS,
    *groups.OPERATIONS,
    *jobs.OPERATIONS,
    *turns.OPERATIONS,
    *cancels.OPERATIONS,
    *backends.OPERATIONS,
    *looking.OPERATIONS,
    *watching.OPERATIONS,
    *probes.OPERATIONS,
)
