#!lua flags=allow-oom
-- Moves wanted samples of groups from a run's backlog onto the first stage: each becomes a job. A group of which only
-- a part is taken stays in the backlog, and gets no verdict before the rest is admitted.
-- KEYS: 1 backlog, 2 stage stream, 3 deadlines, 4 events, 5 jobs in flight, 6 un-acknowledged groups, 7 duty,
--       8 paused runs, then per group: group, and per sample taken: job; last: lanes of task families
-- ARGV: 1 packed {state, stage, run, by, consumers, events_cap, tokens, lanes = {stream = name},
--       items = {{ref, next, wanted, total_ms}}, take = {samples of each item}}
-- Reply per group: jobs made, or -1 when the group is not as the caller saw it, another process has the
-- duty, or the run is paused
--@include call
--@include entry
--@include lane
local reply, key, deadlines, made, begun = {}, 9, {}, 0, 0
local holder = call('GET', KEYS[7])
local others = holder and string.match(holder, '^[^\t]*') ~= A.by
local pause = tonumber(call('ZSCORE', KEYS[8], A.run) or 0)
for place, item in ipairs(A.items) do
  local ref, first, wanted, deadline = item[1], item[2], item[3], now_ms + item[4]
  local group, take = KEYS[key], A.take[place]
  key = key + 1
  local fields = call('HMGET', group, 'next', 'wanted', 'at')
  local as_seen = not others and pause <= now_ms and tonumber(fields[1]) == first and tonumber(fields[2]) == wanted
  if as_seen and take < wanted then as_seen = call('ZSCORE', KEYS[1], ref)
  elseif as_seen then as_seen = call('ZREM', KEYS[1], ref) == 1 end
  if not as_seen then
    reply[place] = -1
    key = key + take
  else
    local submitted = fields[3] and 'submitted_ms=' .. fields[3]
    call('UNLINK', unpack(KEYS, key, key + take - 1))  -- what lingers of an acknowledged group of that name, with its TTL
    for index = first, first + take - 1 do
      local job = ref .. ':' .. index
      local entry, token = enqueue(KEYS[2], job, 0, 0, 0, deadline)
      call('HSET', KEYS[key], 'state', A.state, 'stage', A.stage, 'token', token, 'entry', entry, 'stream', KEYS[2],
        'deadline', deadline, 'at', now_ms, 'line', note('', job, 'admit', A.stage, '', '', submitted))
      deadlines[#deadlines + 1] = deadline
      deadlines[#deadlines + 1] = job
      key = key + 1
    end
    call('HSET', group, 'next', first + take, 'wanted', wanted - take)
    call('HINCRBY', group, 'open', take)
    call('HINCRBY', group, 'changes', 1)
    made = made + take
    begun = begun + (first == 0 and 1 or 0)
    reply[place] = take
  end
end
for at = 1, #deadlines, 1000 do
  call('ZADD', KEYS[3], unpack(deadlines, at, math.min(at + 999, #deadlines)))
end
if made > 0 then call('HINCRBY', KEYS[5], A.run, made) end
if begun > 0 then call('HINCRBY', KEYS[6], A.run, begun) end
publish(KEYS[4])
return reply
