-- Ends jobs: each one's record and time line go to its group, whose last open job makes a verdict due. A script that ends
-- jobs calls `land` when it has ended all of its own: it writes to each group and run once.
local groups, samples, runs, outcomes, freed = {}, {}, {}, {}, 0

-- `bytes`: that the job has waiting for EVAL; nothing where it has none.
local function end_job(to, job, line, group, ref, index, record, outcome, commits, logged, bytes)
  forget_log(job, logged)
  call('HSET', job, 'state', to, 'outcome', outcome, 'commits', commits, 'entry', '', 'carry', '', 'owner', '',
    'line', '')
  local theirs = samples[group]
  if not theirs then
    theirs = {ref = string.match(ref, '^(.*):'), jobs = 0}
    samples[group], groups[#groups + 1] = theirs, group
    theirs.run = string.match(ref, '^[^:]*:[^:]*')
  end
  local at = #theirs
  theirs[at + 1], theirs[at + 2], theirs[at + 3], theirs[at + 4] = 's:' .. index, record, 't:' .. index, line
  theirs.jobs = theirs.jobs + 1
  outcomes[outcome] = (outcomes[outcome] or 0) + 1
  freed = freed + (bytes or 0)
end

-- Takes the jobs that have ended out of their groups' and runs' counts, and counts how they ended. KEYS: due, bytes
-- waiting for EVAL, jobs in flight, counters.
local function land(due, waiting, in_flight, counters)
  for _, group in ipairs(groups) do
    local theirs = samples[group]
    for at = 1, #theirs, 1000 do
      call('HSET', group, unpack(theirs, at, math.min(at + 999, #theirs)))
    end
    call('HINCRBY', group, 'changes', theirs.jobs)
    if call('HINCRBY', group, 'open', -theirs.jobs) == 0 then add(due, 'g', theirs.ref) end
    runs[theirs.run] = (runs[theirs.run] or 0) + theirs.jobs
  end
  if freed > 0 then call('DECRBY', waiting, freed) end
  for outcome, count in pairs(outcomes) do call('HINCRBY', counters, 'jobs:' .. outcome, count) end
  for run, count in pairs(runs) do
    if call('HINCRBY', in_flight, run, -count) <= 0 then call('HDEL', in_flight, run) end
  end
end
