#!lua flags=allow-oom
-- Ends a batch's draws and acceptances, once. With `carry`, all that is in play becomes its run's carry-over.
-- KEYS: 1 batch, 2 drawn, 3 carried, 4 carrying, 5 bell, 6 counters
-- ARGV: 1 packed {batch, run, open, ending, reason, carry, keep_ms}: `open` and `ending` are the phases before and after;
--       `keep_ms` is how long the carry-over waits for another batch
-- Reply: halted, or already
--@include call
if call('HGET', KEYS[1], 'phase') ~= A.open then return 'already' end
call('HSET', KEYS[1], 'phase', A.ending, 'reason', A.reason)
local left = call('ZCARD', KEYS[2])
if A.carry and left > 0 then
  if call('RENAMENX', KEYS[2], KEYS[3]) == 0 then
    call('ZUNIONSTORE', KEYS[3], 2, KEYS[3], KEYS[2], 'AGGREGATE', 'MIN')
    call('UNLINK', KEYS[2])
  end
  call('ZADD', KEYS[4], now_ms + A.keep_ms, A.run)
  call('HINCRBY', KEYS[1], 'closed', left)
  call('HSET', KEYS[1], 'carried_out', left, 'v:carried', left)
  call('HINCRBY', KEYS[6], 'dapo:carried', left)
end
call('ZADD', KEYS[5], 0, A.batch)
return 'halted'
