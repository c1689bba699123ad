"""Limits of payloads, each with its reason."""

from typing import Final

SMALL_BYTES: Final = 64 << 10  # up to here a file costs five times as much as Redis, above it about twice
REDIS_BYTES: Final = 16 << 20  # that Redis takes of one payload
UNCOMMITTED_TTL_MS: Final = 3600 * 1000  # in Redis, of what no commit has named
# A file that no key names is collected after this: a commit that comes later than half of it loses a payload in Redis.
GRACE_S: Final = 2 * UNCOMMITTED_TTL_MS / 1000
