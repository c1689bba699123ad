-- Ends a job: its sample's record and its time line go to the group; the group's last open job makes a verdict due.
local function end_job(to, job, timeline, group, due, ref, index, record, outcome, commits)
  call('HSET', job, 'state', to, 'outcome', outcome, 'commits', commits, 'entry', '')
  call('HDEL', job, 'carry', 'owner')
  local line = call('LRANGE', timeline, 0, -1)
  call('HSET', group, 's:' .. index, record, 't:' .. index, array_head(#line) .. table.concat(line))
  call('UNLINK', timeline)
  if call('HINCRBY', group, 'open', -1) == 0 then
    call('XADD', due, '*', 'g', string.match(ref, '^(.*):'))
  end
end
