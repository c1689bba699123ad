#!lua flags=allow-oom
-- Writes down how far the service's time has come: it never goes below that. A jump of Redis's clock is taken out of it,
-- once, and what was written meanwhile is put right: no lease and no worker lives for longer than a lease from now, and
-- no back-off is longer than the longest.
-- KEYS: 1 leases, 2 workers, 3 delayed
-- ARGV: 1 packed {seen_ms, offset_ms, jumped, lease_ms, back_off_ms}: the offset that the caller saw, and the one that
--       takes its place; jumped: the time that was written down counts no more
-- Reply: shifted, or moved when the offset is not as the caller saw it
--@include call
if tonumber(epoch[3] or 0) ~= A.seen_ms then return 'moved' end
local now = math.floor(clock_us / 1000) + A.offset_ms - A.seen_ms
if not A.jumped then now = math.max(now, tonumber(epoch[4] or 0)) end
call('HSET', epoch_key, 'offset_ms', A.offset_ms, 'floor_ms', string.format('%.0f', now))
if not A.jumped then return 'shifted' end
for place, longest_ms in ipairs({A.lease_ms, A.lease_ms, A.back_off_ms}) do
  for _, member in ipairs(call('ZRANGEBYSCORE', KEYS[place], now + 2 * longest_ms, '+inf')) do
    call('ZADD', KEYS[place], 'XX', now + longest_ms, member)
  end
end
return 'shifted'
