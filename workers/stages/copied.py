"""The sandbox of a forked job as a copy of its parent's, where that one is on this node and still as it was."""

import logging
from typing import Final

from prorl_mq.schema.turns import Inherited
from sandbox.errors import CannotCopy, CannotRestore, SandboxError
from sandbox.isolators.layers.copying import Copies, beside
from sandbox.protocol import Sandbox
from workers import metrics
from workers.stages.job_log import JobLog
from workers.stages.log_faults import RestoreFailed

log: Final = logging.getLogger(__name__)


async def copied(copies: Copies, job: JobLog, base: Inherited, box: Sandbox) -> bool:
    """False where it cannot be one, and is as INIT has made it. Raises `RestoreFailed` where it is of no use."""
    try:
        await copies.copy(beside(box.handle, base.sandbox), box, turn=base.turn)
    except CannotRestore as error:
        raise RestoreFailed(str(error)) from error
    except CannotCopy as error:
        log.info("%s of turn %d is not copied: %s", base.job, base.turn, error)
        return False
    except SandboxError as error:  # of the new one
        raise RestoreFailed(str(error)) from error
    job.restored, job.restored_from = base.turn, f"the sandbox of {base.job}"
    metrics.copied.inc()
    return True
