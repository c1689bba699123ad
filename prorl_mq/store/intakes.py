"""A trainer's side of the intake: messages that an API process takes, and their answers on the run's results."""

from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.intake import ANSWER_FIELD, MESSAGE_FIELD, IntakeAnswer, decode_answer
from prorl_mq.store import results
from prorl_mq.store.core import Repeat
from prorl_mq.store.store import Store

BLOCK_MS: Final = 2_000


async def exchange(store: Store, run: RunRef, reply: str, body: bytes, *, within_s: float) -> IntakeAnswer | None:
    """Adds a message and waits for its answer, which it removes; None if none has come in time.

    A message that is sent twice is carried out once: what it asks for may be asked for again.
    """
    after = await results.last_cursor(store, run)
    await store.write("SADD", store.keys.intakes, run, repeat=Repeat.SAME)
    await store.write("XADD", store.keys.intake(run), "*", MESSAGE_FIELD, body, repeat=Repeat.SAME)
    stream, give_up = store.keys.results(run), monotonic() + within_s
    while monotonic() < give_up:
        read = await store.wait_read("XREAD", "BLOCK", BLOCK_MS, "COUNT", 64, "STREAMS", stream, after)
        for entry, fields in read[0][1] if read else ():
            after = entry.decode()
            if fields[0] == ANSWER_FIELD and (answer := decode_answer(fields[1])).reply == reply:
                await results.drop_answers(store, run, [after])
                return answer
    return None
