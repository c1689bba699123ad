-- Ends a job: its sample's record and its time line go to the group; the group's last open job makes a verdict due.
local function end_job(to, job, line, group, due, ref, index, record, outcome, commits)
  call('HSET', job, 'state', to, 'outcome', outcome, 'commits', commits, 'entry', '', 'carry', '', 'owner', '',
    'line', '')
  call('HSET', group, 's:' .. index, record, 't:' .. index, line)
  if call('HINCRBY', group, 'open', -1) == 0 then
    call('XADD', due, '*', 'g', string.match(ref, '^(.*):'))
  end
end
