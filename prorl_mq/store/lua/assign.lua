#!lua flags=allow-oom
-- Reserves the least loaded backend of a pool for a leased job, or keeps the one that it has; where `to` names one, that
-- one if it may be taken, else the job keeps its own. One that has served the job's group is preferred while it holds at most `bound` jobs more. Passed over: excluded, draining, broken, full and
-- shut ones, those behind the version `floor`, and new ones that hold their share already: age / ramp_ms of the mean.
-- KEYS: 1 heap, 2 backends' descriptions, 3 job, 4 group, 5 events
-- ARGV: 1 packed {rules, ref, stage, worker, events_cap, token, exclude = {address...}, bound, ramp_ms, trial_ms,
--       longest_ms, floor, labels_are_old, to}; longest_ms: shut for longer than that was written while the clock was wrong;
--       floor: decimal digits, or empty for none
-- Reply: {'assigned' | 'already', address, description}, or {'stale'}, {'none'}
--@include call
--@include fence
local f = call('HMGET', KEYS[3], 'state', 'token', 'backend', 'line', 'owner')
if not (f[1] and A.rules[f[1]]) or f[2] ~= A.token or f[5] ~= A.worker then return {'stale'} end
local excluded = {}
for _, address in ipairs(A.exclude) do excluded[address] = true end
local own = f[3] and not excluded[f[3]] and call('HGET', KEYS[2], f[3])
if own and (A.to == '' or A.to == f[3]) then return {'already', f[3], own} end

local function behind(version)
  if A.floor == '' or not version then return false end
  local number = #version <= 19 and string.match(version, '^0*(%d+)$')
  if not number then return A.labels_are_old end
  return #number < #A.floor or #number == #A.floor and number < A.floor  -- as text: Lua rounds above 2^53
end

local candidates, jobs_sum, settled = {}, 0, 0
local heap = call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for at = 1, #heap, 2 do
  local address, jobs = heap[at], tonumber(heap[at + 1])
  local about, out, limit, since, breaker, version, broken = unpack(call('HMGET', KEYS[2], address, address .. '|out',
    address .. '|limit', address .. '|since', address .. '|breaker', address .. '|version', address .. '|broken'))
  local failures, openings, shut, misses = string.match(breaker or '', '^(%d+) (%d+) (%d+) (%d+)')
  local half_open = openings and tonumber(openings) > 0
  local full = limit and jobs >= tonumber(limit)
  if about and not out and not broken and not full and not excluded[address] and not behind(version)
    and not (half_open and tonumber(shut) > now_ms and tonumber(shut) <= now_ms + A.longest_ms) then
    local age = A.ramp_ms > 0 and math.abs(now_ms - tonumber(since)) / A.ramp_ms or 1
    if age >= 1 and not half_open then jobs_sum, settled = jobs_sum + jobs, settled + 1 end
    local until_ms = string.format('%.0f', now_ms + A.trial_ms)
    local trial = half_open and table.concat({failures, openings, until_ms, misses, '1 0'}, ' ')
    candidates[#candidates + 1] = {address = address, jobs = jobs, age = age, about = about, trial = trial}
  end
end

-- The heap is in order of load: the first that may be taken is the least loaded one.
local warm = call('HGET', KEYS[4], 'warm') or ' '
local best, preferred, spare, named
for _, each in ipairs(candidates) do
  local ramping = each.age < 1 and settled > 0 and each.jobs >= math.max(1, each.age * jobs_sum / settled)
  spare = spare or each
  if each.address == A.to then named = each end
  if not ramping then
    best = best or each
    local knows = string.find(warm, ' ' .. each.address .. ' ', 1, true)
    if knows and not preferred and each.jobs <= best.jobs + A.bound then preferred = each end
  end
end
if own and not named then return {'already', f[3], own} end
local chosen = named or preferred or best or spare
if not chosen then return {'none'} end
give_back(KEYS[1], KEYS[3], f[3])
call('ZINCRBY', KEYS[1], 1, chosen.address)
call('HSET', KEYS[3], 'backend', chosen.address,
  'line', note(f[4], A.ref, 'assign', A.stage, A.token, A.worker, chosen.address))
publish(KEYS[5])
if chosen.trial then call('HSET', KEYS[2], chosen.address .. '|breaker', chosen.trial) end
if not string.find(warm, ' ' .. chosen.address .. ' ', 1, true) and call('EXISTS', KEYS[4]) == 1 then
  call('HSET', KEYS[4], 'warm', warm .. chosen.address .. ' ')
end
return {'assigned', chosen.address, chosen.about}
