#!lua flags=allow-oom
-- After the read: a new token and a lease for each entry that its job still stands behind.
-- KEYS: 1 stage stream, 2 leases, 3 events, then per item: job
-- ARGV: 1 packed {rules, consumers, worker, stage, events_cap, items = {{ref, entry, lease_ms, budget_ms}}}
-- Reply per item: {'claimed' | 'already', token, attempts, deaths, releases, deadline, carry, trajectory}, or a refusal:
-- {'gone'} {'stale'} {'expired'}. The entry behind a gone or stale claim is removed.
--@include call
local reply, key, leases, orphans = {}, 4, {}, {}
for place, item in ipairs(A.items) do
  local ref, entry = item[1], item[2]
  local job = KEYS[key]
  key = key + 1
  local f = call('HMGET', job, 'state', 'entry', 'token', 'owner', 'deadline', 'attempts', 'deaths', 'releases',
    'carry', 'trajectory', 'stream', 'line')
  local to = f[1] and A.rules[f[1]]
  local mine = f[2] == entry and f[11] == KEYS[1]
  local token, status = f[3]
  if not f[1] or not mine then
    status = f[1] and 'stale' or 'gone'
    orphans[#orphans + 1] = entry
  elseif not to then
    status = f[4] == A.worker and 'already' or 'stale'
  elseif tonumber(f[5]) <= now_ms then
    status = 'expired'
  else
    status, token = 'claimed', next_token()
    call('HSET', job, 'state', to, 'token', token, 'owner', A.worker, 'until', now_ms + item[4], 'claimed', now_ms,
      'line', note(f[12], ref, 'claim', A.stage, token, A.worker))
    leases[#leases + 1] = now_ms + math.min(item[3], item[4])
    leases[#leases + 1] = ref
  end
  if status == 'claimed' or status == 'already' then
    reply[place] = {status, token, tonumber(f[6]) or 0, tonumber(f[7]) or 0, tonumber(f[8]) or 0, tonumber(f[5]),
      f[9] or '', f[10] or ''}
  else
    reply[place] = {status}
  end
end
if #leases > 0 then call('ZADD', KEYS[2], unpack(leases)) end
if #orphans > 0 then
  call('XACK', KEYS[1], A.consumers, unpack(orphans))
  call('XDEL', KEYS[1], unpack(orphans))
end
publish(KEYS[3])
return reply
