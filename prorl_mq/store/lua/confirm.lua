#!lua flags=allow-oom
-- A worker reports that what it was told to stop is dead: the job ends as its ending says.
-- KEYS: 1 leases, 2 events, 3 deadlines, 4 due, 5 bytes waiting for EVAL, then the job: job, heap, group, stage stream;
--       last: jobs in flight, counters
-- ARGV: 1 packed {rules, consumers, worker, stage, events_cap, items = {{ref, token, entry, index, record, detail}}},
--       then bytes
-- Reply per item: confirmed, or the fence's refusal
--@include call
--@include fence
--@include turns
--@include ending
local reply, key, done = {}, 6, {}
for place, item in ipairs(A.items) do
  local ref, token = item[1], item[2]
  local job, heap, group, stream = KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3]
  local to, more, commits = commit(A.rules, job, stream, ref, item[3], token, 0)
  key = key + 4
  if to then
    give_back(heap, job, more[BACKEND])
    local line = note(more[LINE], ref, more[ENDING], A.stage, token, A.worker, item[6])
    end_job(to, job, line, group, ref, item[4], raw(item[5]), more[ENDING], commits, more[LOGGED], more[BYTES])
    delete_committed(stream)
    done[#done + 1] = ref
    reply[place] = 'confirmed'
  else
    reply[place] = more
  end
end
remove_all('ZREM', KEYS[1], done)
remove_all('ZREM', KEYS[3], done)
land(KEYS[4], KEYS[5], KEYS[#KEYS - 1], KEYS[#KEYS])
publish(KEYS[2])
return reply
