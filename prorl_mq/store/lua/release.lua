#!lua flags=allow-oom
-- Gives jobs back to the stage they were claimed from, at once; the attempt does not count. One with a log of turns
-- waits in front.
-- KEYS: 3 of `park`, 1 stage stream, 2 leases, 3 events, then per item: job, heap, stream to wait on, the one in front
-- ARGV: 1 packed {rules, parks, consumers, worker, stage, events_cap, items = {{ref, token, entry, held_ms}}}
-- Reply per item: released, or the fence's refusal
--@include call
--@include entry
--@include fence
--@include park
local reply, key, done = {}, 4, {}
for place, item in ipairs(A.items) do
  local ref, token = item[1], item[2]
  local job, heap, stream, front = unpack(KEYS, key, key + 3)
  key = key + 4
  local to, more, commits = commit(A.rules, job, KEYS[1], ref, item[3], token, item[4])
  if to then
    give_back(heap, job, more[BACKEND])
    local releases = (tonumber(more[RELEASES]) or 0) + 1
    local line, parked = note(more[LINE], ref, 'release', A.stage, token, A.worker), parks(more[STATE], more[PAUSE])
    if more[LOGGED] then stream = front end
    call('HSET', job, 'stream', stream, 'commits', commits, 'releases', releases)
    if parked then
      park(parked, job, ref, line, A.stage, more[PAUSE])
    else
      local trajectory, carry = unpack(call('HMGET', job, 'trajectory', 'carry'))
      local added, next = put(stream, ref, more[ATTEMPTS], more[DEATHS], releases, more[DEADLINE], trajectory, carry)
      call('HSET', job, 'state', to, 'token', next, 'entry', added, 'owner', '', 'line', line)
    end
    done[#done + 1] = ref
    reply[place] = 'released'
  else
    reply[place] = more
  end
end
delete_committed(KEYS[1])
remove_all('ZREM', KEYS[2], done)
publish(KEYS[3])
return reply
