-- Ends a job: its sample's record and its time line go to the group; the group's last open job makes a verdict due.
-- A script that ends jobs calls `land` when it has ended all of its own.
local landed = {}

local function end_job(to, job, line, group, due, ref, index, record, outcome, commits)
  call('HSET', job, 'state', to, 'outcome', outcome, 'commits', commits, 'entry', '', 'carry', '', 'owner', '',
    'line', '')
  call('HSET', group, 's:' .. index, record, 't:' .. index, line)
  if call('HINCRBY', group, 'open', -1) == 0 then
    call('XADD', due, '*', 'g', string.match(ref, '^(.*):'))
  end
  local run = string.match(ref, '^[^:]*:[^:]*')
  landed[run] = (landed[run] or 0) + 1
end

-- Takes the jobs that have ended out of their runs' counts of jobs in flight.
local function land(key)
  for run, count in pairs(landed) do
    if call('HINCRBY', key, run, -count) <= 0 then call('HDEL', key, run) end
  end
end
