#!lua flags=allow-oom
-- A worker's heartbeat: it is alive, and so are the leases of its jobs, none past its stage's budget.
-- KEYS: 1 leases, 2 workers, 3 worker, then per item: job
-- ARGV: 1 packed {rules, name, alive_ms, about = {field, value, ...}, items = {{ref, token, lease_ms}}}
-- Reply per item: held, lost, or the ending of a job that must stop
--@include call
call('ZADD', KEYS[2], now_ms + A.alive_ms, A.name)
call('HSET', KEYS[3], unpack(A.about))
call('PEXPIRE', KEYS[3], 4 * A.alive_ms)
local reply = {}
for place, item in ipairs(A.items) do
  local f = call('HMGET', KEYS[3 + place], 'state', 'token', 'until', 'ending')
  if f[2] ~= item[2] or not (f[1] and A.rules[f[1]]) then
    reply[place] = 'lost'
  else
    call('ZADD', KEYS[1], 'XX', math.min(now_ms + item[3], tonumber(f[3])), item[1])
    reply[place] = f[4] or 'held'
  end
end
return reply
