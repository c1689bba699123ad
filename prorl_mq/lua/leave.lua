#!lua flags=allow-oom
-- Takes a backend out of a pool: `drain` lets its jobs go on, otherwise it is forgotten with its reservations.
-- KEYS: 1 heap, 2 backends' descriptions   ARGV: 1 packed {address, reason, drain}
-- Reply: left, draining, or unknown
--@include call
if call('HEXISTS', KEYS[2], A.address) == 0 then return 'unknown' end
if A.drain then
  call('HSET', KEYS[2], A.address .. '|out', A.reason)
  return 'draining'
end
call('HDEL', KEYS[2], A.address, A.address .. '|out', A.address .. '|limit')
call('ZREM', KEYS[1], A.address)
return 'left'
