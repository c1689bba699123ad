"""The directory of payloads: `payloads` beside the file that says where Redis is, or beside Redis's Unix socket.

Whoever finds Redis so sees that place, so that no setting has to name it. The directory switches files on: where nobody
has made it, and for an address by TCP, payloads stay in Redis.
"""

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from prorl_mq.store.payloads.files import PayloadFiles
from prorl_mq.store.server.connection import RedisSettings

DIRECTORY: Final = "payloads"


def payloads_of(settings: RedisSettings) -> PayloadFiles | None:
    """The files of a deployment, whether its directory is there or not; None where there is no place for one."""
    url = urlsplit(settings.url)
    beside = settings.followed or (Path(url.path) if url.scheme == "unix" else None)
    return None if beside is None else PayloadFiles(beside.absolute().parent / DIRECTORY, settings.namespace)
