#!lua flags=allow-oom
-- Moves wanted samples of groups from a run's backlog onto the first stage: each becomes a job. A group of which only
-- a part is taken stays in the backlog, and gets no verdict before the rest is admitted.
-- KEYS: 1 backlog, 2 stage stream, 3 deadlines, 4 events, 5 jobs in flight, 6 un-acknowledged groups, 7 duty,
--       8 paused runs, then per group: group, and per sample taken: job; last: lanes of task families
-- ARGV: 1 packed {state, stage, run, by, consumers, events_cap, tokens, lanes = {stream = name},
--       items = {{ref, next, wanted, total_ms}}, take = {samples of each item}}
-- Reply per group: jobs made, or -1 when the group is not as the caller saw it, another process has the
-- duty, or the run is paused
--@include call
--@include entry
--@include lane
--@include admission
local reply, key, holder = {}, 9, admitting(KEYS[7])
local others = holder and holder ~= A.by or paused(KEYS[8])
for place, item in ipairs(A.items) do
  local ref, first, wanted = item[1], item[2], item[3]
  local group, take = KEYS[key], A.take[place]
  key = key + 1
  local fields = call('HMGET', group, 'next', 'wanted', 'at')
  local as_seen = not others and tonumber(fields[1]) == first and tonumber(fields[2]) == wanted
  if as_seen and take < wanted then as_seen = call('ZSCORE', KEYS[1], ref)
  elseif as_seen then as_seen = call('ZREM', KEYS[1], ref) == 1 end
  if not as_seen then
    reply[place] = -1
  else
    begin(ref, group, first, take, wanted, item[4], fields[3], KEYS[2], key)
    reply[place] = take
  end
  key = key + take
end
count_begun(KEYS[3], KEYS[5], KEYS[6])
publish(KEYS[4])
return reply
