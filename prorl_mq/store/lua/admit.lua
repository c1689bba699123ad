#!lua flags=allow-oom
-- Moves wanted samples of groups from a run's backlog onto the first stage: each becomes a job.
-- KEYS: 1 backlog, 2 stage stream, 3 deadlines, 4 events, 5 jobs in flight, 6 un-acknowledged groups, 7 duty,
--       then per group: group, and per wanted sample: job; last: lanes of task families
-- ARGV: 1 packed {state, stage, run, by, consumers, events_cap, lanes = {stream = name}, items = {{ref, next, wanted, total_ms}}}
-- Reply per group: jobs made, or -1 when the group is not as the caller saw it, or another process has the duty
--@include call
--@include lane
local reply, key, deadlines, made, begun = {}, 8, {}, 0, 0
local holder = call('GET', KEYS[7])
local others = holder and string.match(holder, '^[^\t]*') ~= A.by
for place, item in ipairs(A.items) do
  local ref, first, wanted, deadline = item[1], item[2], item[3], now_ms + item[4]
  local group = KEYS[key]
  key = key + 1
  local fields = call('HMGET', group, 'next', 'wanted', 'at')
  if others or tonumber(fields[1]) ~= first or tonumber(fields[2]) ~= wanted or call('ZREM', KEYS[1], ref) == 0 then
    reply[place] = -1
    key = key + wanted
  else
    local submitted = fields[3] and 'submitted_ms=' .. fields[3]
    for index = first, first + wanted - 1 do
      local job = ref .. ':' .. index
      local entry = enqueue(KEYS[2], job)
      call('UNLINK', KEYS[key])  -- what lingers of an acknowledged group of the same name, with its TTL
      call('HSET', KEYS[key], 'state', A.state, 'stage', A.stage, 'entry', entry, 'stream', KEYS[2],
        'deadline', deadline, 'at', now_ms, 'line', note('', job, 'admit', A.stage, '', '', submitted))
      deadlines[#deadlines + 1] = deadline
      deadlines[#deadlines + 1] = job
      key = key + 1
    end
    call('HSET', group, 'next', first + wanted, 'wanted', 0)
    call('HINCRBY', group, 'open', wanted)
    call('HINCRBY', group, 'changes', 1)
    made = made + wanted
    begun = begun + (first == 0 and 1 or 0)
    reply[place] = wanted
  end
end
for at = 1, #deadlines, 1000 do
  call('ZADD', KEYS[3], unpack(deadlines, at, math.min(at + 999, #deadlines)))
end
if made > 0 then call('HINCRBY', KEYS[5], A.run, made) end
if begun > 0 then call('HINCRBY', KEYS[6], A.run, begun) end
publish(KEYS[4])
return reply
