#!lua
-- Stores groups of one batch and puts them where they wait: into their run's backlog, or into a reservoir. Idempotent
-- by batch and group id. Few samples begin at once where admission offers that: nothing waits for its turn, and there is
-- room on the first stage.
-- KEYS: 1 batch, 2 backlog or reservoir, 3 runs, 4 run, 5 bell, 6 open groups, 7 DAPO batches, 8 batches of the
--       run, 9 open groups of the batch, then per group: group, open, sealed; where they may begin: stage stream,
--       deadlines, events, jobs in flight, un-acknowledged groups, duty, paused runs, offer, then the job of each sample
-- ARGV: 1 packed {digest, run, batch, ttl_ms, groups, jobs, base, ahead_us, reserved, plan, target,
--       batches_cap, items = {{ref, digest, n, total_ms, open, sealed, family, images}}}, bytes; base and ahead_us: as
--       `order.py` says. With a plan, the batch is a DAPO batch. Where they may begin: {state, stage, consumers,
--       events_cap, tokens, lanes, told}; `tokens` is the number of their samples, `told` the
--       largest spec that goes into an entry, in bytes
-- Reply: per group stored, begun, already or conflict; with a conflict nothing is stored. {'conflict'} alone: the batch's
-- body differs. {'ended'}: the batch takes no groups any more. Without groups: {'stored'} or {'already'}.
--@include call
--@include entry
--@include lane
--@include admission
-- Whether all of the call may begin now, by the offer of the process that admits (`msgpack {by, most, families}`).
local function may_begin(first)
  local offer = A.tokens and call('GET', KEYS[first + 7])
  if not offer then return nil end
  offer = cmsgpack.unpack(offer)
  if call('EXISTS', KEYS[5]) == 1 then return nil end  -- something came before, and was not looked at
  if admitting(KEYS[first + 5]) ~= offer.by then return nil end
  if paused(KEYS[first + 6]) then return nil end
  if call('XLEN', KEYS[first]) + A.tokens > offer.most then return nil end
  for _, item in ipairs(A.items) do
    if not offer.families[item[7]] then return nil end
  end
  return true
end

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
local beginning = 10 + 3 * #A.items
local begins = may_begin(beginning)
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
local job = beginning + 8
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
    if begins then
      local spec = raw(item[5])
      begin(item[1], group, 0, item[3], item[3], item[4], now_text, KEYS[beginning], job, #spec <= A.told and spec)
      reply[place] = 'begun'
    else
      fresh[#fresh + 1] = string.format('%.0f', A.base + now_us - A.ahead_us + place)
      fresh[#fresh + 1] = item[1]
    end
    names[#names + 1] = item[1]
  end
  job = job + item[3]
end
if #names > 0 then
  call('PERSIST', B)
  if #fresh > 0 then call('ZADD', KEYS[2], unpack(fresh)) end
  call('SADD', KEYS[6], unpack(names))
  call('SADD', KEYS[9], unpack(names))
  if A.plan > 0 then call('HINCRBY', B, 'stored', #names) end
end
if #names > 0 or #A.items == 0 then
  call('ZADD', KEYS[3], now_ms, A.run)
  call('HSET', KEYS[4], 'seen', now_ms)
  call('PERSIST', KEYS[4])
end
if begins then
  count_begun(KEYS[beginning + 1], KEYS[beginning + 3], KEYS[beginning + 4])
  publish(KEYS[beginning + 2])
elseif #names > 0 or #A.items == 0 then
  call('ZADD', KEYS[5], 0, A.reserved and A.batch or A.run)
end
return #A.items == 0 and {'stored'} or reply
