"""The owner of a directory of payload files: the data of one Redis, by a random mark that both have.

A server that has lost its data, or another one that was given the directory, names none of its files: without the mark,
it would collect them all.
"""

import secrets
from typing import Final

from prorl_mq.store.core import Repeat
from prorl_mq.store.payloads.files import PayloadFiles
from prorl_mq.store.payloads.reading import in_thread
from prorl_mq.store.store import Store

FIELD: Final = "payloads"  # of the epoch


async def known(store: Store) -> str:
    """The mark that the data have; empty before the first collection."""
    mark: bytes | None = await store.read("HGET", store.keys.epoch, FIELD)
    return (mark or b"").decode()


async def made(store: Store) -> str:
    """The mark of the data, which get one if they have none."""
    await store.write("HSETNX", store.keys.epoch, FIELD, secrets.token_hex(16), repeat=Repeat.SAME)
    return await known(store)


async def stranger(store: Store, files: PayloadFiles) -> str:
    """Why nothing may be collected in a directory; empty where it belongs to these data, or to none yet."""
    theirs = await in_thread(files.owner)
    if not theirs or theirs == await known(store):
        return ""
    return (
        f"{files.directory} belongs to the data of another Redis, or this one has lost its own: nothing is collected "
        f"there. Restore Redis's data, or give up those files: remove {files.owner_file}"
    )
