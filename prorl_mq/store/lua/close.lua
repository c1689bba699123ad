#!lua flags=allow-oom
-- Publishes the report of a batch of which every group has its record, once.
-- KEYS: 1 batch, 2 results, 3 DAPO batches, 4 run, 5 names that may be cancelled,
--       6 open groups of the batch: those that it has left to the run's next one
-- ARGV: 1 packed {batch, ending, closed, groups, ttl_ms, trainers}, 2 the report: `ending` and `closed` are the phases
--       before and after; `groups` is how many closed groups the report counts
-- Reply: the report's id in the result stream; already; or open when a group is left, or has closed since
--@include call
--@include batch
--@include publish
local f = call('HMGET', KEYS[1], 'phase', 'closed', 'stored', 'joined')
if f[1] ~= A.ending then return f[1] == A.closed and 'already' or 'open' end
local closed = tonumber(f[2])
if closed ~= A.groups or closed < tonumber(f[3]) + tonumber(f[4] or 0) then return 'open' end
local cursor = add_result(KEYS[2], 'b', ARGV[2])
call('HSET', KEYS[1], 'phase', A.closed, 'cursor', cursor, 'report', ARGV[2])
let_go(KEYS[1], KEYS[6])
call('ZREM', KEYS[3], A.batch)
call('SREM', KEYS[5], A.batch)
call('HINCRBY', KEYS[4], 'bytes', #ARGV[2])
call('PERSIST', KEYS[4])
return cursor
