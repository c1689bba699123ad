#!lua flags=allow-oom
-- Takes groups from where they wait, for good: no sample of theirs is admitted any more.
-- KEYS: 1 backlog, 2 the run's reservoir, 3 due, then per item: group, its batch's reservoir, parked
-- ARGV: 1 packed {why, items = {ref}}: the first reason stays
-- Reply per item: next (how many jobs the group has had), or -1 when there is no such open group
--@include call
local reply = {}
for place, ref in ipairs(A.items) do
  local group, reservoir, parked = unpack(KEYS, 1 + 3 * place, 3 + 3 * place)
  local f = call('HMGET', group, 'next', 'open', 'cursor', 'withdrawn')
  if not f[1] or f[3] then
    reply[place] = -1
  else
    if not f[4] then call('HSET', group, 'withdrawn', A.why) end
    call('HSET', group, 'wanted', 0)
    local waited = call('ZREM', KEYS[1], ref) + call('ZREM', KEYS[2], ref) + call('ZREM', reservoir, ref)
      + call('HDEL', group, 'parked')
    call('ZREM', parked, ref)
    if not f[4] or waited > 0 then call('HINCRBY', group, 'changes', 1) end
    if waited > 0 and tonumber(f[2]) == 0 then add(KEYS[3], 'g', ref) end
    reply[place] = tonumber(f[1])
  end
end
return reply
