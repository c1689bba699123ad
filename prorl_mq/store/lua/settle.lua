#!lua flags=allow-oom
-- Applies the verdict of a group once: back to the backlog for refills, parked, or published as a record.
-- KEYS: 1 due, 2 group, 3 batch, 4 run, 5 backlog, 6 bell, 7 results, 8 open, 9 sealed, 10 open groups of
--       the run, 11 of the batch, with `seen`: 12 drawn, 13 carried, 14 carrying, 15 bell of the draw, 16 parked; then per job: job;
--       last: fork, names that may be cancelled, counters
-- ARGV: 1 packed {entry, ref, run, batch, changes, wanted, verdict, park, counts, bytes, linger_ms, ttl_ms, trainers,
--       tally = {counter, number, ...}, losses = {field of the run, number, ...}, seen = {phase, carried}}, 2 the record. `changes` is the group's version that
--       the verdict was made of; `seen` is there for groups from a reservoir; `counts`: towards their batch's target
-- Reply: refilled, parked, or the record's id in the result stream; already when somebody else has applied it, or jobs
-- of the group are still open or to be admitted; moved when the group has changed since the verdict was made, or its batch is not as the
-- caller saw it, or the batch is full (the group stays due, for another verdict)
--@include call
--@include batch
--@include publish
local seen = A.seen
local f = call('HMGET', KEYS[2], 'open', 'cursor', 'base', 'changes', 'wanted')
if f[1] and not f[2] then
  if #call('XRANGE', KEYS[1], A.entry, A.entry) == 0 then return 'already' end
  if (f[4] or '') ~= A.changes then return 'moved' end
  if seen then
    local b = call('HMGET', KEYS[3], 'phase', 'target', 'n:accepted')
    local carried = call('ZSCORE', KEYS[13], A.ref) and true or false
    local same = (b[1] or '') == seen.phase and carried == seen.carried
    if not same or (A.counts and tonumber(b[3] or 0) >= tonumber(b[2])) then return 'moved' end
  end
end
if A.wanted == 0 and not A.park and not takes_entries(KEYS[7]) then
  return redis.error_reply('WRONGTYPE ' .. KEYS[7] .. ' is no stream')  -- the group stays due
end
if call('XDEL', KEYS[1], A.entry) == 0 then return 'already' end
if not f[1] or f[2] or tonumber(f[1]) ~= 0 or tonumber(f[5]) > 0 then return 'already' end
if A.wanted > 0 then
  call('HSET', KEYS[2], 'wanted', A.wanted)
  call('HINCRBY', KEYS[2], 'refills', A.wanted)
  call('HINCRBY', KEYS[2], 'changes', 1)
  call('HINCRBY', KEYS[#KEYS], seen and 'dapo:refilled' or 'refilled', A.wanted)
  call('ZADD', KEYS[5], f[3] or 0, A.ref)  -- before all that are new
  call('ZADD', KEYS[6], 0, A.run)
  return 'refilled'
end
if seen then call('ZADD', KEYS[15], 0, A.batch) end
if A.park then
  local order = call('ZSCORE', KEYS[12], A.ref)
  call('HSET', KEYS[2], 'parked', 1)
  if order then call('ZADD', KEYS[16], order, A.ref) end
  call('HINCRBY', KEYS[2], 'changes', 1)
  return 'parked'
end
local cursor = add_result(KEYS[7], 'r', ARGV[2])
local digest = call('HGET', KEYS[2], 'digest')
call('DEL', KEYS[2])
call('HSET', KEYS[2], 'digest', digest, 'cursor', cursor, 'verdict', A.verdict, 'bytes', A.bytes)
if call('EXISTS', KEYS[3]) == 1 and not (seen and seen.carried) then
  local closed = call('HINCRBY', KEYS[3], 'closed', 1)
  if not seen and closed == tonumber(call('HGET', KEYS[3], 'groups')) then call('SREM', KEYS[#KEYS - 1], A.batch) end
  call('HINCRBY', KEYS[3], 'v:' .. A.verdict, 1)
  for at = 1, #A.tally, 2 do call('HINCRBY', KEYS[3], A.tally[at], A.tally[at + 1]) end
end
if seen then
  call('ZREM', KEYS[12], A.ref)
  if call('ZREM', KEYS[13], A.ref) == 1 and call('EXISTS', KEYS[13]) == 0 then
    call('ZREM', KEYS[14], A.run)
  end
end
call('HINCRBY', KEYS[#KEYS], (seen and 'dapo:' or 'groups:') .. A.verdict, 1)
call('HINCRBY', KEYS[4], 'bytes', A.bytes)
for at = 1, #A.losses, 2 do call('HINCRBY', KEYS[4], A.losses[at], A.losses[at + 1]) end
local jobs = #KEYS - 3 - (seen and 16 or 11)
if jobs > 0 then  -- of one sample: at once to a larger one, slowly to smaller ones
  local size, mean = tonumber(call('HGET', KEYS[4], 'size') or 0), A.bytes / jobs
  call('HSET', KEYS[4], 'size', math.ceil(math.max(mean, size - (size - mean) / 8)))
end
call('PERSIST', KEYS[4])
call('UNLINK', KEYS[8], KEYS[9], KEYS[#KEYS - 2])
call('SREM', KEYS[10], A.ref)
call('SREM', KEYS[11], A.ref)
let_go(KEYS[3], KEYS[11])
for key = seen and 17 or 12, #KEYS - 3 do call('PEXPIRE', KEYS[key], A.linger_ms) end
return cursor
