"""Cancels that a trainer asked for by moving a name, which a full Redis does not refuse."""

from collections.abc import Collection, Iterable
from functools import partial

from prorl_mq.duties.apart import Apart
from prorl_mq.errors import Conflict, NotFound, RunMoved
from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import BatchRef, public
from prorl_mq.schema.intake import IntakeAnswer
from prorl_mq.service import cancel
from prorl_mq.store.direct import cancellable
from prorl_mq.store.store import Store


class AskedCancels:
    """Carries them out and answers each under the name that was moved."""

    def __init__(self, store: Store, apart: Apart) -> None:
        self._store = store
        self._apart = apart

    async def asked(self, tenants: Collection[str]) -> list[str]:
        """Names of batches and runs that these tenants want cancelled, but for runs that are left out."""
        names = await self._apart.do("to_cancel", partial(cancellable.asked, self._store, tenants)) or []
        return [name for name in names if not self._apart.left_out(_run(name))]

    async def carry_out(self, names: Iterable[str]) -> None:
        """Cancels and answers, one after the other."""
        for name in names:
            if self._apart.left_out(_run(name)):
                continue
            await self._apart.do(_run(name), partial(self._cancel, BatchRef(name)))

    async def _cancel(self, name: BatchRef) -> None:
        kind = "batch" if name.count(":") == 2 else "run"
        try:
            value = await cancel.cancel(self._store, kind, name)
            answer = IntakeAnswer(reply=public(name), ok=True, value=value, status=200)
        except RunMoved as error:
            answer = IntakeAnswer(reply=public(name), ok=False, status=421, error=str(error))
        except NotFound as error:
            answer = IntakeAnswer(reply=public(name), ok=False, status=404, error=str(error))
        except Conflict as error:
            answer = IntakeAnswer(reply=public(name), ok=False, status=409, error=str(error))
        await self._store.answer_cancel(name, encode(answer))


def _run(name: str) -> str:
    return ":".join(name.split(":")[:2])
