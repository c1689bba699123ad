#!lua flags=allow-oom
-- Pauses jobs for some time. One that nobody has is parked now. Any other is marked: its worker reads so in the answer to
-- its heartbeat, and the next verb that would put the job on a stream parks it. A repeat gives a pause another end.
-- KEYS: 3 of `park`, 1 events, 2 delayed, then per item: job, the stream that the job is on
-- ARGV: 1 packed {rules, parks, consumers, by, events_cap, for_ms, ends, items = {{ref}}}; ends: what then becomes of a
--       job that is still parked, resume or expire
-- Reply per item: parked, pausing, gone, moved (look again), or the state of a job that takes no pause
--@include call
--@include entry
--@include park
local reply, key, until_ms = {}, 3, now_ms + A.for_ms
for place, item in ipairs(A.items) do
  local ref, job, stream = item[1], KEYS[key], KEYS[key + 1]
  key = key + 2
  local f = call('HMGET', job, 'state', 'stream', 'entry', 'line', 'stage', 'pause', 'parked')
  local to, stays = f[1] and A.parks[f[1]], f[1] and A.rules[f[1]]
  if not (to or stays) then
    reply[place] = f[1] or 'gone'
  elseif f[2] ~= stream then
    reply[place] = 'moved'
  elseif f[7] then
    call('HSET', job, 'pause', until_ms, 'ends', A.ends)
    call('ZADD', paused_jobs, 'XX', until_ms, ref)
    reply[place] = 'parked'
  elseif to and not (f[3] ~= '' and reader(stream, f[3])) then
    if f[3] ~= '' then
      call('XACK', stream, A.consumers, f[3])
      call('XDEL', stream, f[3])
    end
    call('ZREM', KEYS[2], ref)
    call('HSET', job, 'pause', until_ms, 'ends', A.ends)
    park(to, job, ref, f[4], f[5], until_ms)
    reply[place] = 'parked'
  else
    call('HSET', job, 'pause', until_ms, 'ends', A.ends)
    if not f[6] or tonumber(f[6]) <= now_ms then call('HSET', job, 'line', note(f[4], ref, 'pause', f[5], '', A.by)) end
    reply[place] = 'pausing'
  end
end
publish(KEYS[1])
return reply
