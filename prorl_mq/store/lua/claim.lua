#!lua flags=allow-oom
-- Gives leases for entries that the caller has read. A job whose end is committed soon after its read needs none: the
-- entry's token is its fence. The entry behind a gone or stale claim is removed, unless another worker has read it.
-- KEYS: 1 stage stream, 2 leases, 3 events, then per item: job
-- ARGV: 1 packed {rules, consumers, worker, events_cap, items = {{ref, entry, token, held_ms, lease_ms, budget_ms}}};
--       token: empty where the caller does not know it
-- Reply per item: {'claimed' | 'already', token, attempts, deaths, releases, deadline, carry, trajectory}, or a refusal:
-- {'gone'} {'stale'} {'expired'}
--@include call
--@include entry
--@include lease
local reply, leases, orphans = {}, {}, {}
for place, item in ipairs(A.items) do
  local ref, entry = item[1], item[2]
  local f, status, until_ms = lease(A.rules, KEYS[3 + place], KEYS[1], ref, entry, item[3], item[4], item[5], item[6])
  if until_ms then
    leases[#leases + 1] = until_ms
    leases[#leases + 1] = ref
  end
  if status == 'claimed' or status == 'already' then
    reply[place] = {status, f[3], tonumber(f[ATTEMPTS]) or 0, tonumber(f[DEATHS]) or 0, tonumber(f[RELEASES]) or 0,
      tonumber(f[DEADLINE]), f[CARRY] or '', f[TRAJECTORY] or ''}
  else
    reply[place] = {status}
    if status ~= 'expired' and (f[2] ~= entry or f[11] ~= KEYS[1]) then orphans[#orphans + 1] = entry end
  end
end
if #leases > 0 then call('ZADD', KEYS[2], unpack(leases)) end
if #orphans > 0 then
  call('XACK', KEYS[1], A.consumers, unpack(orphans))
  call('XDEL', KEYS[1], unpack(orphans))
end
publish(KEYS[3])
return reply
