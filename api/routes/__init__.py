"""The operations of the HTTP interface, one module for each kind of thing."""

from api.operations import Operation
from api.routes import (
    batches,
    cancelling,
    cells,
    forking,
    groups,
    jobs,
    moving,
    pausing,
    pools,
    results,
    runs,
    service,
    watch,
)

MODULES = (batches, runs, results, groups, jobs, cancelling, pausing, forking, pools, watch, cells, moving, service)
OPERATIONS = tuple(each for module in MODULES for each in vars(module).values() if isinstance(each, Operation))
