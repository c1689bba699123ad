-- Ends a job: its sample's record goes to the group; the group's last open job makes a verdict due.
local function end_job(to, job, group, due, ref, index, record, outcome, commits)
  call('HSET', job, 'state', to, 'outcome', outcome, 'commits', commits)
  call('HDEL', job, 'carry', 'owner')
  call('HSET', group, 's:' .. index, record)
  if call('HINCRBY', group, 'open', -1) == 0 then
    call('XADD', due, '*', 'g', string.match(ref, '^(.*):'))
  end
end
