#!lua flags=allow-oom
-- Takes groups out of their run's backlog for good: no sample of theirs is admitted any more.
-- KEYS: 1 backlog, 2 due, then per item: group
-- ARGV: 1 packed {items = {ref}}
-- Reply per item: next (how many jobs the group has had), or -1 when there is no such open group
--@include call
local reply = {}
for place, ref in ipairs(A.items) do
  local group = KEYS[2 + place]
  local f = call('HMGET', group, 'next', 'open', 'cursor', 'withdrawn')
  if not f[1] or f[3] then
    reply[place] = -1
  else
    call('HSET', group, 'withdrawn', 1, 'wanted', 0)
    if call('ZREM', KEYS[1], ref) == 1 and tonumber(f[2]) == 0 then call('XADD', KEYS[2], '*', 'g', ref) end
    reply[place] = tonumber(f[1])
  end
end
return reply
