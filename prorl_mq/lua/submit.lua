#!lua
-- Stores groups of one batch and appends them to their run's backlog. Idempotent by batch and group id.
-- KEYS: 1 batch, 2 backlog, 3 runs, 4 run, 5 bell, then per group: group, open, sealed
-- ARGV: 1 packed {digest, run, batch, ttl_ms, groups, jobs, items = {{ref, digest, n, open, sealed}}}, then bytes
-- Reply: {'conflict'}, or one of stored, already, conflict per group
--@include call
local B = KEYS[1]
local digest = call('HGET', B, 'digest')
if digest and digest ~= A.digest then return {'conflict'} end
if not digest then
  call('HSET', B, 'digest', A.digest, 'groups', A.groups, 'jobs', A.jobs, 'closed', 0, 'at', now_ms)
end
call('PEXPIRE', B, A.ttl_ms)
local reply, key, fresh = {}, 6, {}
for place, item in ipairs(A.items) do
  local ref, group_digest, n, open, sealed = item[1], item[2], item[3], raw(item[4]), raw(item[5])
  local known = call('HGET', KEYS[key], 'digest')
  local done = call('HGET', B, 'g:' .. ref)
  if known or done then
    reply[place] = (known or done) == group_digest and 'already' or 'conflict'
  else
    call('HSET', KEYS[key], 'digest', group_digest, 'batch', A.batch, 'n', n, 'wanted', n, 'next', 0, 'open', 0,
      'refills', 0, 'at', now_ms)
    call('SET', KEYS[key + 1], open)
    if sealed ~= '' then call('SET', KEYS[key + 2], sealed) end
    fresh[#fresh + 1] = string.format('%.0f', now_us + place)
    fresh[#fresh + 1] = ref
    reply[place] = 'stored'
  end
  key = key + 3
end
if #fresh > 0 then
  call('HINCRBY', B, 'stored', #fresh / 2)
  for at = 1, #fresh, 1000 do call('ZADD', KEYS[2], unpack(fresh, at, math.min(at + 999, #fresh))) end
  call('ZADD', KEYS[3], now_ms, A.run)
  call('HSET', KEYS[4], 'seen', now_ms)
  call('PEXPIRE', KEYS[4], A.ttl_ms)
  if call('LLEN', KEYS[5]) == 0 then call('LPUSH', KEYS[5], 1) end
end
return reply
