#!lua flags=allow-oom
-- Resumes paused jobs: one that is parked is put on a stream, with as much time to its total deadline as it had; of one
-- that its worker has not given back yet the mark is removed. A job with a log of turns waits in front.
-- KEYS: 1 events, 2 paused, 3 deadlines, then per item: job, the stream that it continues on, the one in front
-- ARGV: 1 packed {rules, by, events_cap, over, items = {{ref, token, stage}}}; over: only where the pause has ended
-- Reply per item: resumed, already (it is not paused), moved (look again), gone
--@include call
--@include entry
local reply, key = {}, 4
for place, item in ipairs(A.items) do
  local ref, job, stream, front = item[1], unpack(KEYS, key, key + 2)
  key = key + 3
  local f = call('HMGET', job, 'state', 'token', 'parked', 'pause', 'line', 'stage', 'attempts', 'deaths', 'releases',
    'deadline', 'trajectory', 'carry', 'logged')
  local to = f[1] and A.rules[f[1]]
  if not to or not f[4] then
    reply[place] = f[1] and 'already' or 'gone'
  elseif A.over and tonumber(f[4]) > now_ms then
    reply[place] = 'moved'
  elseif not f[3] then
    call('HDEL', job, 'pause', 'ends')
    call('HSET', job, 'line', note(f[5], ref, 'resume', f[6], '', A.by))
    reply[place] = 'resumed'
  elseif f[2] ~= item[2] then
    reply[place] = 'moved'
  else
    local deadline = string.format('%.0f', tonumber(f[10]) + now_ms - tonumber(f[3]))
    if f[13] then stream = front end
    local added, token = put(stream, ref, f[7], f[8], f[9], deadline, f[11], f[12])
    call('HDEL', job, 'pause', 'ends', 'parked')
    call('HSET', job, 'state', to, 'stage', item[3], 'stream', stream, 'token', token, 'entry', added,
      'deadline', deadline, 'line', note(f[5], ref, 'resume', item[3], '', A.by))
    call('ZREM', KEYS[2], ref)
    call('ZADD', KEYS[3], deadline, ref)
    reply[place] = 'resumed'
  end
end
publish(KEYS[1])
return reply
