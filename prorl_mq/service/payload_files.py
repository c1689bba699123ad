"""Place of a service's payloads, in a few words for people."""

import asyncio
from typing import Final

from prorl_mq.store.payloads.files import PayloadFiles
from prorl_mq.store.payloads.limits import REDIS_BYTES, SMALL_BYTES

COUNTED: Final = 20_000  # files at most: a look must not take long
LOOK_S: Final = 5.0  # how long a file system may take to answer
RULE: Final = f"above {SMALL_BYTES >> 10} KiB"


async def told(files: PayloadFiles | None) -> str:
    """Says where they lie, and how many bytes are in files."""
    in_redis = f"in Redis, {REDIS_BYTES >> 20} MiB each at most"
    if files is None:
        return f"{in_redis}, for who reaches it by TCP: that address names no directory"
    try:
        async with asyncio.timeout(LOOK_S):
            if not await asyncio.to_thread(lambda: files.there):
                return f"{in_redis}: there is no {files.directory}"
            held = await asyncio.to_thread(lambda: files.held(at_most=COUNTED))
            space = await asyncio.to_thread(files.space)
    except (OSError, TimeoutError) as error:
        return f"{files.directory} does not answer ({error}); see `prorl-mq doctor`"
    least = "" if held.whole else "over "
    size = f"{least}{held.files} files, {held.bytes / (1 << 20):.1f} MiB"
    full = "" if space.spare > 0 else "; almost full, so no checkpoints are written"
    return f"{RULE} in {files.directory}: {size}; {space}{full}"


async def fault(files: PayloadFiles | None) -> str:
    """Why no file can be written there, or no checkpoint; empty if both can, or none has to."""
    if files is None:
        return ""
    try:
        async with asyncio.timeout(LOOK_S):
            if await asyncio.to_thread(lambda: files.there):
                await asyncio.to_thread(files.probe)
                space = await asyncio.to_thread(files.space)
                if space.spare <= 0:
                    return f"{files.directory} is almost full: {space}; no checkpoints are written"
    except (OSError, TimeoutError) as error:
        return f"{files.directory}: {getattr(error, 'strerror', '') or 'it does not answer'}"
    return ""
