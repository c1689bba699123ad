#!lua flags=allow-oom
-- A worker's heartbeat: it is alive, and so are the leases of its jobs, none past its stage's budget. What it has read
-- and not claimed yet gets its lease here: no handler that holds up the worker's loop costs its job.
-- KEYS: 1 leases, 2 workers, 3 worker, 4 events, then per item: job, stage stream
-- ARGV: 1 packed {rules, claims, consumers, worker, alive_ms, events_cap, about = {field, value, ...},
--       items = {{ref, token, entry, held_ms, lease_ms, budget_ms}}}; claims: the rules of `claim`;
--       pauses: the caller knows the answer `pause`
-- Reply per item: held, unleased (past its deadline, and not claimed any more), lost, pause (a job that is
-- marked to), or the ending of a job that must stop
--@include call
--@include entry
--@include lease
call('ZADD', KEYS[2], now_ms + A.alive_ms, A.worker)
call('HSET', KEYS[3], unpack(A.about))
call('PEXPIRE', KEYS[3], 4 * A.alive_ms)
local reply = {}
for place, item in ipairs(A.items) do
  local ref, job = item[1], KEYS[3 + 2 * place]
  local f = call('HMGET', job, 'state', 'token', 'until', 'ending', 'owner', 'pause')
  if f[2] ~= item[2] then
    reply[place] = 'lost'
  elseif A.claims[f[1]] then
    local stream, token, entry = KEYS[4 + 2 * place], item[2], item[3]
    local _, status, until_ms = lease(A.claims, job, stream, ref, entry, token, item[4], item[5], item[6])
    if until_ms then call('ZADD', KEYS[1], until_ms, ref) end
    reply[place] = until_ms and 'held' or status == 'expired' and 'unleased' or 'lost'
  elseif not A.rules[f[1]] or f[5] ~= A.worker then
    reply[place] = 'lost'
  else
    call('ZADD', KEYS[1], 'XX', math.min(now_ms + item[5], tonumber(f[3])), ref)
    reply[place] = f[4] or A.pauses and f[6] and tonumber(f[6]) > now_ms and 'pause' or 'held'
  end
end
publish(KEYS[4])
return reply
