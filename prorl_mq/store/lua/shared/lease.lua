-- Gives the caller the lease of a job that it has read and not committed: nobody else may commit it from then on.
-- Answers the job's fields and what came of it: claimed, already (it has the lease), stale (another entry, token or owner;
-- or another worker has read the entry), gone, expired. The lease's time is to be added where it was claimed.
local ATTEMPTS, DEATHS, RELEASES, DEADLINE, CARRY, TRAJECTORY = 6, 7, 8, 5, 9, 10

local function lease(to, job, stream, ref, entry, token, held_ms, lease_ms, budget_ms)
  local f = call('HMGET', job, 'state', 'entry', 'token', 'owner', 'deadline', 'attempts', 'deaths', 'releases',
    'carry', 'trajectory', 'stream', 'line', 'stage')
  if not f[1] then return f, 'gone' end
  if f[2] ~= entry or f[11] ~= stream or token ~= '' and f[3] ~= token then return f, 'stale' end
  if not to[f[1]] then return f, f[4] == A.worker and 'already' or 'stale' end
  if reader(stream, entry) ~= A.worker then return f, 'stale' end
  if tonumber(f[5]) <= now_ms then return f, 'expired' end
  local since = now_ms - held_ms
  local until_ms = math.max(since + budget_ms, now_ms)
  call('HSET', job, 'state', to[f[1]], 'owner', A.worker, 'until', until_ms, 'claimed', since,
    'line', note(f[12], ref, 'claim', f[13], f[3], A.worker, '', since))
  return f, 'claimed', math.min(now_ms + lease_ms, until_ms)
end
