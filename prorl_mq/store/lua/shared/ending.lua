-- Ends a job: its sample's record and its time line go to the group; the group's last open job makes a verdict due. A
-- script that ends jobs calls `land` when it has ended all of its own.
local landed, outcomes = {}, {}

local function end_job(to, job, line, group, due, ref, index, record, outcome, commits, logged)
  forget_log(job, logged)
  call('HSET', job, 'state', to, 'outcome', outcome, 'commits', commits, 'entry', '', 'carry', '', 'owner', '',
    'line', '')
  call('HSET', group, 's:' .. index, record, 't:' .. index, line)
  call('HINCRBY', group, 'changes', 1)
  if call('HINCRBY', group, 'open', -1) == 0 then
    add(due, 'g', string.match(ref, '^(.*):'))
  end
  local run = string.match(ref, '^[^:]*:[^:]*')
  landed[run] = (landed[run] or 0) + 1
  outcomes[outcome] = (outcomes[outcome] or 0) + 1
end

-- Takes the jobs that have ended out of their runs' counts of jobs in flight, and counts how they ended.
local function land(key, counters)
  for outcome, count in pairs(outcomes) do call('HINCRBY', counters, 'jobs:' .. outcome, count) end
  for run, count in pairs(landed) do
    if call('HINCRBY', key, run, -count) <= 0 then call('HDEL', key, run) end
  end
end
