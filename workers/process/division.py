"""A RUN worker of more slots than one event loop can serve: several processes, and their owner.

The process that was started is the owner. It does no work itself: it starts the others, starts one again that has
crashed, drains all when it is told to, and ends with them.
"""

import sys
from collections.abc import Sequence

from prorl_mq.process.children import Program
from prorl_mq.process.crews.crew import Crew, Stopping
from prorl_mq.process.crews.division import divided
from prorl_mq.schema.messages import Stage
from workers.process.jobs import STOP_S
from workers.process.lifetime import EXIT_S
from workers.settings import WorkerSettings

LAST_S = 5.0  # beyond the bound that a worker sets itself


def programs(settings: WorkerSettings, argv: Sequence[str]) -> list[Program]:
    """The processes of a worker with this command line; none where it serves all slots itself."""
    parts = divided(settings.slots, settings.spare_slots) if settings.stage is Stage.RUN else ()
    if len(parts) < 2:
        return []
    named = any(word.partition("=")[0] == "--name" for word in argv)  # else each names itself by its own number
    made = []
    for place, (slots, spare) in enumerate(parts):
        more = ["--slots", f"{slots}+{spare}", "--metrics-listen", _listening(settings.metrics_listen, place)]
        more += ["--name", f"{settings.name}.{place + 1}"] if named else []
        worker = [sys.executable, "-P", "-m", "workers", *argv, *more]
        made.append(Program(name=f"RUN worker {place + 1} of {len(parts)}", argv=worker))
    return made


async def serve(settings: WorkerSettings, workers: Sequence[Program]) -> int:
    """Runs them until they have drained; the exit code of the owner."""
    with Stopping() as stopping:
        return await Crew(workers, grace_s=settings.grace_ms / 1000 + STOP_S + EXIT_S + LAST_S).run(stopping)


def _listening(where: str, place: int) -> str:
    """The place of a process's metrics: a port is followed by the next ones, a path by numbered ones."""
    if where.startswith("unix:"):
        return f"{where}.{place}" if place else where
    host, colon, port = where.rpartition(":")
    return f"{host}:{int(port) + place}" if colon and port.isdecimal() and int(port) else where
