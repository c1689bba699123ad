"""The operations of the HTTP interface, one module for each kind of thing."""

from api.operations import Operation
from api.routes import backends, batches, cancels, jobs, probes, results, runs

OPERATIONS: tuple[Operation, ...] = (
    *batches.OPERATIONS,
    *runs.OPERATIONS,
    *results.OPERATIONS,
    *jobs.OPERATIONS,
    *cancels.OPERATIONS,
    *backends.OPERATIONS,
    *probes.OPERATIONS,
)
