#!lua flags=allow-oom
-- After the read by a worker that lacks the jobs' task families: the entries move to the lanes of those. It is no
-- attempt.
-- KEYS: 3 of `park`, 1 stage stream, 2 events, then per item: job, lane; last: lanes of task families
-- ARGV: 1 packed {rules, parks, consumers, worker, stage, events_cap, lanes = {stream = name}, items = {{ref, entry}}}
-- Reply per item: diverted; already (it is on its lane); stale or gone, where the job is not behind the entry
--@include call
--@include entry
--@include lane
--@include park
local reply, key = {}, 3
for place, item in ipairs(A.items) do
  local ref, entry = item[1], item[2]
  local job, lane = KEYS[key], KEYS[key + 1]
  key = key + 2
  local f = call('HMGET', job, 'state', 'entry', 'stream', 'line', 'attempts', 'deaths', 'releases', 'deadline',
    'trajectory', 'carry', 'pause')
  local to = f[1] and A.rules[f[1]]
  if f[3] == lane then
    reply[place] = 'already'
  elseif not to or f[2] ~= entry or f[3] ~= KEYS[1] then
    reply[place] = f[1] and 'stale' or 'gone'
  else
    call('XACK', KEYS[1], A.consumers, entry)
    call('XDEL', KEYS[1], entry)
    local line, parked = note(f[4], ref, 'divert', A.stage, '', A.worker), parks(f[1], f[11])
    call('HSET', job, 'stream', lane)
    if parked then
      park(parked, job, ref, line, A.stage, f[11])
    else
      local added, token = enqueue(lane, ref, unpack(f, 5, 10))
      call('HSET', job, 'state', to, 'token', token, 'entry', added, 'line', line)
    end
    reply[place] = 'diverted'
  end
end
publish(KEYS[2])
return reply
