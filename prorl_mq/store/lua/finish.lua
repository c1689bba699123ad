#!lua flags=allow-oom
-- Commits the end of jobs: each sample's record goes to its group.
-- KEYS: 1 stage stream, 2 leases, 3 events, 4 deadlines, 5 due, 6 bytes waiting for EVAL,
--       then per item: job, heap, group; last: jobs in flight, counters
-- ARGV: 1 packed {rules, consumers, worker, stage, events_cap,
--       items = {{ref, token, entry, held_ms, index, record, outcome}}}, then bytes
-- Reply per item: finished, or the fence's refusal
--@include call
--@include fence
--@include turns
--@include ending
local reply, key, done = {}, 7, {}
for place, item in ipairs(A.items) do
  local ref, token, outcome = item[1], item[2], item[7]
  local job, heap, group = KEYS[key], KEYS[key + 1], KEYS[key + 2]
  key = key + 3
  local to, more, commits = commit(A.rules, job, KEYS[1], ref, item[3], token, item[4])
  if to then
    give_back(heap, job, more[BACKEND])
    local line = note(more[LINE], ref, 'finish', A.stage, token, A.worker, outcome)
    end_job(to, job, line, group, ref, item[5], raw(item[6]), outcome, commits, more[LOGGED], more[BYTES])
    done[#done + 1] = ref
    reply[place] = 'finished'
  else
    reply[place] = more
  end
end
delete_committed(KEYS[1])
remove_all('ZREM', KEYS[2], done)
remove_all('ZREM', KEYS[4], done)
land(KEYS[5], KEYS[6], KEYS[#KEYS - 1], KEYS[#KEYS])
publish(KEYS[3])
return reply
