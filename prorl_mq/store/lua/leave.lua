#!lua flags=allow-oom
-- Takes a backend out of a pool: with `drain` when its last job has ended, else now. One that is gone stays in the heap
-- for as long as jobs hold it, so that no count is lost; whoever calls again after that removes it.
-- KEYS: 1 heap, 2 backends' descriptions   ARGV: 1 packed {address, reason, drain, sweep}
-- Reply: left, draining, unknown, or kept: a sweep touches none but a draining one
--@include call
local at = A.address
local known = call('HEXISTS', KEYS[2], at) == 1
local idle = (tonumber(call('ZSCORE', KEYS[1], at)) or 0) <= 0
if A.sweep and known and call('HEXISTS', KEYS[2], at .. '|out') == 0 then return 'kept' end
if known and A.drain and not idle then
  call('HSET', KEYS[2], at .. '|out', A.reason)
  return 'draining'
end
if idle then call('ZREM', KEYS[1], at) end
if not known then return 'unknown' end
local facts = {'', '|out', '|limit', '|since', '|breaker', '|version', '|note', '|broken', '|room', '|served'}
for _, fact in ipairs(facts) do
  call('HDEL', KEYS[2], at .. fact)
end
return 'left'
