#!lua flags=allow-oom
-- Commits the end of jobs: each sample's record goes to its group.
-- KEYS: 1 stage stream, 2 leases, 3 events, 4 deadlines, 5 due, 6 bytes waiting for EVAL,
--       then per item: job, timeline, heap, group
-- ARGV: 1 packed {rules, consumers, worker, stage, events_cap, items = {{ref, token, entry, index, record, outcome}}},
--       then bytes
-- Reply per item: finished, or the fence's refusal
--@include call
--@include fence
--@include ending
local reply, key, done = {}, 7, {}
for place, item in ipairs(A.items) do
  local ref, token, outcome = item[1], item[2], item[6]
  local job, timeline, heap, group = KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3]
  key = key + 4
  local to, more, commits = commit(A.rules, job, KEYS[1], item[3], token)
  if to then
    give_back(heap, job, more)
    local bytes = call('HGET', job, 'bytes')
    if bytes then call('DECRBY', KEYS[6], bytes) end
    note(timeline, ref, 'finish', A.stage, token, A.worker, outcome)
    end_job(to, job, timeline, group, KEYS[5], ref, item[4], raw(item[5]), outcome, commits)
    done[#done + 1] = ref
    reply[place] = 'finished'
  else
    reply[place] = more
  end
end
remove_all('ZREM', KEYS[2], done)
remove_all('ZREM', KEYS[4], done)
publish(KEYS[3])
return reply
