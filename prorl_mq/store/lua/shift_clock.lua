#!lua flags=allow-oom
-- Takes a jump of Redis's clock out of the service's time, once, and puts right what was written while it lasted: no
-- lease and no worker lives for longer than a lease from now.
-- KEYS: 1 leases, 2 workers
-- ARGV: 1 packed {seen_ms, offset_ms, lease_ms}: the offset that the caller saw, and the one that takes its place
-- Reply: shifted, or moved when the offset is not as the caller saw it
--@include call
if tonumber(epoch[3] or 0) ~= A.seen_ms then return 'moved' end
call('HSET', epoch_key, 'offset_ms', A.offset_ms)
local now = now_ms + A.offset_ms - A.seen_ms
for _, key in ipairs(KEYS) do
  for _, member in ipairs(call('ZRANGEBYSCORE', key, now + 2 * A.lease_ms, '+inf')) do
    call('ZADD', key, 'XX', now + A.lease_ms, member)
  end
end
return 'shifted'
