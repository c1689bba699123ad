#!lua flags=allow-oom
-- Writes seats of a pool's ledger down, if nobody has changed it since the caller read it: of two processes that decide
-- at once the second one decides again.
-- KEYS: 1 seats   ARGV: 1 packed {seen, stamp, ttl_ms, seats = {{token, text}}}; no text: the seat is free
-- Reply: {'seated' | 'already', ms}, or {'changed', ms, all of the ledger}
--@include call
local stamp = call('HGET', KEYS[1], 'stamp') or ''
if stamp == A.stamp then return {'already', now_text} end
if stamp ~= A.seen then return {'changed', now_text, call('HGETALL', KEYS[1])} end
for _, seat in ipairs(A.seats) do
  if seat[2] == '' then
    call('HDEL', KEYS[1], seat[1])
  else
    call('HSET', KEYS[1], seat[1], seat[2])
  end
end
call('HSET', KEYS[1], 'stamp', A.stamp)
call('PEXPIRE', KEYS[1], A.ttl_ms)
return {'seated', now_text}
