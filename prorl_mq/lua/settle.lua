#!lua flags=allow-oom
-- Applies the verdict of a group once: back to the backlog for refills, or published as a record.
-- KEYS: 1 due, 2 group, 3 batch, 4 run, 5 backlog, 6 bell, 7 results, 8 open, 9 sealed, 10 open groups, then per job: job
-- ARGV: 1 packed {entry, ref, wanted, verdict, bytes, linger_ms, ttl_ms}, 2 the record
-- Reply: refilled, or the record's id in the result stream; already when somebody else has applied it; withdrawn when
-- the group was withdrawn since the refills were decided on (it stays due, for another verdict)
--@include call
if A.wanted > 0 and call('HEXISTS', KEYS[2], 'withdrawn') == 1 then return 'withdrawn' end
if call('XDEL', KEYS[1], A.entry) == 0 then return 'already' end
local f = call('HMGET', KEYS[2], 'open', 'cursor', 'base')
if not f[1] or f[2] or tonumber(f[1]) ~= 0 then return 'already' end
if A.wanted > 0 then
  call('HSET', KEYS[2], 'wanted', A.wanted)
  call('HINCRBY', KEYS[2], 'refills', A.wanted)
  call('ZADD', KEYS[5], f[3] or 0, A.ref)  -- before all that are new
  if call('LLEN', KEYS[6]) == 0 then call('LPUSH', KEYS[6], 1) end
  return 'refilled'
end
local cursor = call('XADD', KEYS[7], '*', 'r', ARGV[2])
local digest = call('HGET', KEYS[2], 'digest')
call('DEL', KEYS[2])
call('HSET', KEYS[2], 'digest', digest, 'cursor', cursor, 'verdict', A.verdict, 'bytes', A.bytes)
if call('EXISTS', KEYS[3]) == 1 then
  call('HINCRBY', KEYS[3], 'closed', 1)
  call('HINCRBY', KEYS[3], 'v:' .. A.verdict, 1)
end
call('HINCRBY', KEYS[4], 'bytes', A.bytes)
call('PEXPIRE', KEYS[4], A.ttl_ms)
call('UNLINK', KEYS[8], KEYS[9])
call('SREM', KEYS[10], A.ref)
for key = 11, #KEYS do call('PEXPIRE', KEYS[key], A.linger_ms) end
return cursor
