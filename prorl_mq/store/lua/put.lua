#!lua flags=allow-oom
-- Writes a blob that nothing owns yet: it dies by its TTL unless a commit keeps it.
-- KEYS: 1 blob   ARGV: 1 TTL in ms, 2 bytes
-- Allowed at maxmemory, so that running work can complete when new work is refused.
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
return 1
