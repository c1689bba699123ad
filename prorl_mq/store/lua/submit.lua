#!lua
-- Stores groups of one batch and puts them where they wait: into their run's backlog, or into a reservoir. Idempotent
-- by batch and group id.
-- KEYS: 1 batch, 2 backlog or reservoir, 3 runs, 4 run, 5 bell, 6 open groups, 7 DAPO batches, 8 batches of the
--       run, 9 open groups of the batch, then per group: group, open, sealed
-- ARGV: 1 packed {digest, run, batch, ttl_ms, groups, jobs, base, ahead_us, reserved, plan, target,
--       batches_cap, items = {{ref, digest, n, total_ms, open, sealed, family, images}}}, bytes; base and ahead_us: as
--       `order.py` says. With a plan, the batch is a DAPO batch
-- Reply: per group stored, already or conflict; with a conflict nothing is stored. {'conflict'} alone: the batch's
-- body differs. {'ended'}: the batch takes no groups any more. Without groups: {'stored'} or {'already'}.
--@include call
local B = KEYS[1]
local digest, phase = unpack(call('HMGET', B, 'digest', 'phase'))
if digest and digest ~= A.digest then return {'conflict'} end
local reply, clash, new = {}, false, #A.items == 0
for place, item in ipairs(A.items) do
  local known = call('HGET', KEYS[7 + 3 * place], 'digest') or call('HGET', B, 'g:' .. item[1])
  reply[place] = not known and 'stored' or known == item[2] and 'already' or 'conflict'
  clash = clash or reply[place] == 'conflict'
  new = new or not known
end
if clash then return reply end
if digest and #A.items == 0 then return {'already'} end
if new and phase and phase ~= 'open' then return {'ended'} end
if not new and not digest then return reply end  -- forgotten since: its records are still there
if not digest then
  call('HSET', B, 'digest', A.digest, 'groups', A.groups, 'jobs', A.jobs, 'closed', 0, 'at', now_ms)
  call('ZADD', KEYS[8], now_ms, A.batch)
  call('ZREMRANGEBYRANK', KEYS[8], 0, -1 - A.batches_cap)
  if A.plan > 0 then
    call('HSET', B, 'plan', raw(A.plan), 'phase', 'open', 'target', A.target, 'stored', 0)
    call('ZADD', KEYS[7], now_us, A.batch)
  end
end
call('PEXPIRE', B, A.ttl_ms, 'XX')  -- it has closed, and is asked for again
local fresh, names = {}, {}
for place, item in ipairs(A.items) do
  if reply[place] == 'stored' then
    local group, open, sealed = unpack(KEYS, 7 + 3 * place, 9 + 3 * place)
    call('HSET', group, 'digest', item[2], 'batch', A.batch, 'n', item[3], 'wanted', item[3], 'next', 0, 'open', 0,
      'refills', 0, 'total_ms', item[4], 'family', item[7], 'at', now_ms)
    if A.base ~= 0 then call('HSET', group, 'base', string.format('%.0f', A.base)) end
    if A.reserved then call('HSET', group, 'order', 0, 'ahead_us', string.format('%.0f', A.ahead_us)) end
    if item[8] ~= '' then call('HSET', group, 'images', item[8]) end
    call('SET', open, raw(item[5]))
    if item[6] > 0 then call('SET', sealed, raw(item[6])) end
    fresh[#fresh + 1] = string.format('%.0f', A.base + now_us - A.ahead_us + place)
    fresh[#fresh + 1] = item[1]
    names[#names + 1] = item[1]
  end
end
if #fresh > 0 then
  call('PERSIST', B)
  call('ZADD', KEYS[2], unpack(fresh))
  call('SADD', KEYS[6], unpack(names))
  call('SADD', KEYS[9], unpack(names))
  if A.plan > 0 then call('HINCRBY', B, 'stored', #names) end
end
if #fresh > 0 or #A.items == 0 then
  call('ZADD', KEYS[3], now_ms, A.run)
  call('HSET', KEYS[4], 'seen', now_ms)
  call('PERSIST', KEYS[4])
  call('ZADD', KEYS[5], 0, A.reserved and A.batch or A.run)
end
return #A.items == 0 and {'stored'} or reply
