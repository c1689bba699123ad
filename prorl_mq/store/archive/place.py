"""The directory of the archive: `archive` beside that of the payloads, so that no setting has to name it.

Its existence switches the archive on, as that of `payloads` switches payload files on. An address by TCP has no place.
"""

from pathlib import Path
from typing import Final

from prorl_mq.store.payloads.place import payloads_of
from prorl_mq.store.server.connection import RedisSettings

DIRECTORY: Final = "archive"


def archive_of(settings: RedisSettings) -> Path | None:
    """The directory of a deployment, whether it is there or not; None where there is no place for one."""
    payloads = payloads_of(settings)
    return None if payloads is None else payloads.directory.with_name(DIRECTORY)
