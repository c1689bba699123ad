#!lua flags=allow-oom
-- Puts failed jobs aside until their back-off is over; `stage` says where each continues, one with a log of turns in
-- front.
-- KEYS: 3 of `park`, 1 stage stream, 2 leases, 3 events, 4 delayed, 5 bytes waiting for EVAL,
--       then per item: job, heap, stream to continue on, the one in front
-- ARGV: 1 packed {rules, parks, consumers, worker, events_cap,
--       items = {{ref, token, entry, held_ms, stage, delay_ms, detail, counts, forgets, carry?, aside?}}}, then bytes
-- Reply per item: delayed, or the fence's refusal
--@include call
--@include fence
--@include park
--@include turns
local reply, key, done = {}, 6, {}
for place, item in ipairs(A.items) do
  local ref, token, stage = item[1], item[2], item[5]
  local job, heap, stream, front = unpack(KEYS, key, key + 3)
  key = key + 4
  local to, more, commits = commit(A.rules, job, KEYS[1], ref, item[3], token, item[4])
  if to then
    give_back(heap, job, more[BACKEND])
    if more[LOGGED] and not item[9] then stream = front end
    local line, parked = note(more[LINE], ref, 'fail', stage, token, A.worker, item[7]), parks(more[STATE], more[PAUSE])
    call('HSET', job, 'state', to, 'stage', stage, 'stream', stream, 'entry', '', 'commits', commits, 'owner', '',
      'line', line)
    if (item[10] or 0) > 0 then call('HSET', job, 'carry', raw(item[10])) end
    if item[11] then
      call('DECRBY', KEYS[5], more[BYTES] or 0)
      call('HDEL', job, 'bytes')
    end
    if item[9] then forget_log(job, more[LOGGED]) end
    call('HINCRBY', job, item[8] == 1 and 'attempts' or 'releases', 1)
    if parked then
      park(parked, job, ref, line, stage, more[PAUSE])
    else
      call('ZADD', KEYS[4], now_ms + item[6], ref)
    end
    done[#done + 1] = ref
    reply[place] = 'delayed'
  else
    reply[place] = more
  end
end
delete_committed(KEYS[1])
remove_all('ZREM', KEYS[2], done)
publish(KEYS[3])
return reply
