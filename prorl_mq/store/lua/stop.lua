#!lua flags=allow-oom
-- Cancels or expires jobs: waiting ones end now; those that a worker has, leased or only read, are told to stop.
-- KEYS: 1 events, 2 deadlines, 3 delayed, 4 due, 5 cancels, 6 bytes waiting for EVAL, 7 leases,
--       8 paused, then per item: job, group, the stream that the job is on; last: jobs in flight, counters
-- ARGV: 1 packed {rules, done, stopping, consumers, ending, verb, by, events_cap, lease_ms, stop_ms,
--       items = {{ref, index, record, deadline}}}; with a deadline flag, the deadline must
--       have passed, that of a parked job its pause; then bytes
-- Reply per item: ended, stopping, already (told before, or ended), gone, moved (look again)
--@include call
--@include entry
--@include turns
--@include ending
local reply, key, removed, told = {}, 9, {}, {}
for place, item in ipairs(A.items) do
  local ref = item[1]
  local job, group, stream = KEYS[key], KEYS[key + 1], KEYS[key + 2]
  key = key + 3
  local f = call('HMGET', job, 'state', 'token', 'entry', 'stream', 'bytes', 'deadline', 'stage', 'owner', 'commits',
    'line', 'logged', 'parked', 'pause')
  local to, owner = f[1] and A.rules[f[1]], f[8]
  local read_by, read_ms
  if to == A.done and f[4] == stream and f[3] ~= '' then read_by, read_ms = reader(stream, f[3]) end
  if not f[1] then
    reply[place] = 'gone'
    removed[#removed + 1] = ref
  elseif not to then
    reply[place] = 'already'
    removed[#removed + 1] = A.verb == 'expire' and ref or nil
  elseif f[4] ~= stream or (item[4] and (tonumber(f[12] and f[13] or f[6]) or 0) > now_ms) then
    reply[place] = 'moved'
  elseif to == A.done and not read_by then
    if f[3] ~= '' then
      call('XACK', stream, A.consumers, f[3])
      call('XDEL', stream, f[3])
    end
    local line = note(f[10], ref, A.ending, f[7], f[2], A.by)
    end_job(to, job, line, group, ref, item[2], raw(item[3]), A.ending, f[9] or '', f[11], f[5])
    removed[#removed + 1] = ref
    reply[place] = 'ended'
  else
    local line = f[10]
    if read_by then  -- nobody has claimed it: from now on its reader has a lease, to say that nothing of it is left
      to, owner = A.stopping, read_by
      line = note(line, ref, 'claim', f[7], f[2], owner, '', now_ms - read_ms)
      call('HSET', job, 'owner', owner, 'until', now_ms + A.stop_ms)
      call('ZADD', KEYS[7], now_ms + A.lease_ms, ref)
    end
    call('HSET', job, 'state', to, 'ending', A.ending, 'told', now_ms,
      'line', note(line, ref, A.verb, f[7], f[2], A.by))
    told[#told + 1] = ref .. ' ' .. f[2] .. ' ' .. A.ending .. ' ' .. owner
    removed[#removed + 1] = A.verb == 'expire' and ref or nil
    reply[place] = 'stopping'
  end
end
remove_all('ZREM', KEYS[2], removed)
remove_all('ZREM', KEYS[3], removed)
remove_all('ZREM', KEYS[8], removed)
land(KEYS[4], KEYS[6], KEYS[#KEYS - 1], KEYS[#KEYS])
for _, line in ipairs(told) do add(KEYS[5], 'c', line) end
publish(KEYS[1])
return reply
