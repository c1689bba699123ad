#!lua flags=allow-oom
-- Extends the leases of many jobs, none past its stage's budget.
-- KEYS: 1 leases, then per item: job
-- ARGV: 1 packed {rules, items = {{ref, token, lease_ms}}}
-- Reply per item: held, lost, or the ending of a job that must stop
--@include call
local reply = {}
for place, item in ipairs(A.items) do
  local f = call('HMGET', KEYS[1 + place], 'state', 'token', 'until', 'ending')
  if f[2] ~= item[2] or not (f[1] and A.rules[f[1]]) then
    reply[place] = 'lost'
  else
    call('ZADD', KEYS[1], 'XX', math.min(now_ms + item[3], tonumber(f[3])), item[1])
    reply[place] = f[4] or 'held'
  end
end
return reply
