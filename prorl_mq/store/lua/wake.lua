#!lua flags=allow-oom
-- Makes parked groups due again: what they waited for has been decided.
-- KEYS: 1 due, 2 parked, then per item: group   ARGV: 1 packed {items = {ref}}
-- Reply: how many were parked
--@include call
local count = 0
for place, ref in ipairs(A.items) do
  if call('HDEL', KEYS[2 + place], 'parked') == 1 then
    call('ZREM', KEYS[2], ref)
    call('HINCRBY', KEYS[2 + place], 'changes', 1)
    add(KEYS[1], 'g', ref)
    count = count + 1
  end
end
return count
