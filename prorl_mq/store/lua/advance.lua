#!lua flags=allow-oom
-- Commits a stage and puts the job on the next one, one with a log of turns in front.
-- KEYS: 3 of `park`, 1 stage stream, 2 leases, 3 events, 4 bytes waiting for EVAL, then per item: job, next stream,
--       the one in front, heap, and the trajectory's blob where the item has one; last: lanes of task families
-- ARGV: 1 packed {rules, parks, consumers, worker, stage, next, events_cap, lanes = {stream = name}, forgets,
--       items = {{ref, token, entry, held_ms, carry, trajectory, bytes, detail, exported, spec}}}, then bytes
-- forgets: the log of turns, which nobody continues behind RUN
-- Reply per item: advanced, or the fence's refusal
--@include call
--@include entry
--@include fence
--@include lane
--@include park
--@include turns
local reply, key, done, waits = {}, 5, {}, 0
for place, item in ipairs(A.items) do
  local ref, token, trajectory, bytes = item[1], item[2], item[6], item[7]
  local job, stream, front, heap = unpack(KEYS, key, key + 3)
  local blob = trajectory ~= '' and KEYS[key + 4]
  key = key + (blob and 5 or 4)
  local to, more, commits = commit(A.rules, job, KEYS[1], ref, item[3], token, item[4])
  if to then
    give_back(heap, job, more[BACKEND])
    if more[LOGGED] and not A.forgets then stream = front end
    local carry = raw(item[5])
    local line = note(more[LINE], ref, 'advance', A.next, token, A.worker, item[8])
    local parked = parks(more[STATE], more[PAUSE])
    if parked then
      call('HSET', job, 'stage', A.next, 'stream', stream, 'commits', commits, 'made', token, 'carry', carry)
      park(parked, job, ref, line, A.next, more[PAUSE])
    else
      local added, next = enqueue(stream, ref, more[ATTEMPTS], more[DEATHS], more[RELEASES], more[DEADLINE], trajectory,
        carry, item[10] and raw(item[10]))
      call('HSET', job, 'stage', A.next, 'stream', stream, 'commits', commits, 'made', token, 'carry', carry,
        'state', to, 'token', next, 'entry', added, 'owner', '', 'line', line)
      if bytes > 0 then call('HSET', job, 'bytes', bytes) end
      waits = waits + bytes
    end
    if A.forgets then forget_log(job, more[LOGGED]) end
    if blob then
      call('PERSIST', blob)
      call('HSET', job, 'trajectory', trajectory)
    end
    if item[9] ~= '' then call('HSET', job, 'exported', item[9]) end
    done[#done + 1] = ref
    reply[place] = 'advanced'
  else
    reply[place] = more
  end
end
if waits > 0 then call('INCRBY', KEYS[4], waits) end
delete_committed(KEYS[1])
remove_all('ZREM', KEYS[2], done)
publish(KEYS[3])
return reply
