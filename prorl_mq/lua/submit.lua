#!lua
-- Stores groups of one batch and appends them to their run's backlog. Idempotent by batch and group id.
-- KEYS: 1 batch, 2 backlog, 3 runs, 4 run, 5 bell, 6 open groups, then per group: group, open, sealed
-- ARGV: 1 packed {digest, run, batch, ttl_ms, groups, jobs, base, ahead_us,
--       items = {{ref, digest, n, total_ms, open, sealed}}}, bytes; base and ahead_us: as `order.py` says
-- Reply: per group stored, already or conflict; with a conflict nothing is stored. {'conflict'} alone: the batch's
-- body differs.
--@include call
local B = KEYS[1]
local digest = call('HGET', B, 'digest')
if digest and digest ~= A.digest then return {'conflict'} end
local reply, clash = {}, false
for place, item in ipairs(A.items) do
  local known = call('HGET', KEYS[4 + 3 * place], 'digest') or call('HGET', B, 'g:' .. item[1])
  reply[place] = not known and 'stored' or known == item[2] and 'already' or 'conflict'
  clash = clash or reply[place] == 'conflict'
end
if clash then return reply end
if not digest then
  call('HSET', B, 'digest', A.digest, 'groups', A.groups, 'jobs', A.jobs, 'closed', 0, 'at', now_ms)
end
call('PEXPIRE', B, A.ttl_ms)
local fresh, names = {}, {}
for place, item in ipairs(A.items) do
  if reply[place] == 'stored' then
    local group, open, sealed = unpack(KEYS, 4 + 3 * place, 6 + 3 * place)
    call('HSET', group, 'digest', item[2], 'batch', A.batch, 'n', item[3], 'wanted', item[3], 'next', 0, 'open', 0,
      'refills', 0, 'total_ms', item[4], 'at', now_ms)
    if A.base ~= 0 then call('HSET', group, 'base', string.format('%.0f', A.base)) end
    call('SET', open, raw(item[5]))
    if item[6] > 0 then call('SET', sealed, raw(item[6])) end
    fresh[#fresh + 1] = string.format('%.0f', A.base + now_us - A.ahead_us + place)
    fresh[#fresh + 1] = item[1]
    names[#names + 1] = item[1]
  end
end
if #fresh > 0 then
  call('ZADD', KEYS[2], unpack(fresh))
  call('SADD', KEYS[6], unpack(names))
  call('ZADD', KEYS[3], now_ms, A.run)
  call('HSET', KEYS[4], 'seen', now_ms)
  call('PEXPIRE', KEYS[4], A.ttl_ms)
  if call('LLEN', KEYS[5]) == 0 then call('LPUSH', KEYS[5], 1) end
end
return reply
