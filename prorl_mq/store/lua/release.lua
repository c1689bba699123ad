#!lua flags=allow-oom
-- Gives jobs back to the stage they were claimed from, at once; the attempt does not count.
-- KEYS: 1 stage stream, 2 leases, 3 events, then per item: job, heap
-- ARGV: 1 packed {rules, consumers, worker, stage, events_cap, items = {{ref, token, entry}}}
-- Reply per item: released, or the fence's refusal
--@include call
--@include fence
local reply, key, done = {}, 4, {}
for place, item in ipairs(A.items) do
  local ref, token, entry = item[1], item[2], item[3]
  local job, heap = KEYS[key], KEYS[key + 1]
  key = key + 2
  local to, more, commits = commit(A.rules, job, KEYS[1], entry, token)
  if to then
    give_back(heap, job, more[BACKEND])
    local added = add(KEYS[1], 'j', ref)
    call('HSET', job, 'state', to, 'entry', added, 'commits', commits, 'owner', '',
      'line', note(more[LINE], ref, 'release', A.stage, token, A.worker))
    call('HINCRBY', job, 'releases', 1)
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
