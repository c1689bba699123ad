"""Limits of payloads, each with its reason."""

from typing import Final

SMALL_BYTES: Final = 64 << 10  # up to here a file costs five times as much as Redis, above it about twice
REDIS_BYTES: Final = 16 << 20  # that Redis takes of one payload
UNCOMMITTED_TTL_MS: Final = 3600 * 1000  # in Redis, of what no commit has named
# A file that no key names is collected after this: a commit that comes later than half of it loses a payload in Redis.
GRACE_S: Final = 2 * UNCOMMITTED_TTL_MS / 1000
SETTLED_S: Final = 10.0  # above what Redis may lose, and replicas may lag: then a name that is gone stays gone
# Checkpoints can be made again from the log, trajectories cannot: this share of a file system is left to those.
SPARE_SHARE: Final = 1 / 20
SPARE_BYTES: Final = 16 << 30  # at most: a thousand of the largest trajectories that Redis would take
