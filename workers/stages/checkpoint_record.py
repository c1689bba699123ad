"""The checkpoint that a log names: if it may be used, and its archive."""

import msgspec

from prorl_mq.schema.codec import decode
from prorl_mq.schema.turns import Archive, Checkpoint
from sandbox.errors import CannotRestore


def usable(point: Checkpoint, turn_records: int) -> bool:
    """True for a checkpoint of a turn whose end is logged: the policy has not seen what a newer one holds."""
    return 0 <= 2 * point.turn + 1 < turn_records


def archive_of(point: Checkpoint, saved: bytes) -> Archive:
    """The archive that was noted for a checkpoint. Raises `CannotRestore` where there is another one, or none."""
    try:
        archive = decode(saved, Archive)
    except msgspec.MsgspecError as error:
        raise CannotRestore(f"the checkpoint of turn {point.turn} cannot be restored: {error}") from error
    if archive.digest != point.digest:
        raise CannotRestore(f"the checkpoint of turn {point.turn} cannot be restored: Redis has lost it")
    return archive
