#!lua flags=allow-oom
-- Ends leases of a worker that is known to be dead, so that its jobs can be taken back before that.
-- Of another start of a worker with its name nothing is touched: `started` is what its heartbeat says of that.
-- KEYS: 1 leases, 2 worker, then per item: job
-- ARGV: 1 packed {dead, started, items = {{ref, token}}}
-- Reply per item: buried, already (the lease is over), stale (it is not that worker's), or unknown (not that start)
--@include call
local known = call('HGET', KEYS[2], 'started_ms') == A.started
local reply = {}
for place, item in ipairs(A.items) do
  local ref, token, job = item[1], item[2], KEYS[2 + place]
  local f = call('HMGET', job, 'token', 'owner')
  local lease = tonumber(call('ZSCORE', KEYS[1], ref) or '')
  if not known then
    reply[place] = 'unknown'
  elseif f[1] ~= token or f[2] ~= A.dead or not lease then
    reply[place] = 'stale'
  elseif lease <= now_ms then
    reply[place] = 'already'
  else
    call('ZADD', KEYS[1], 'XX', now_ms, ref)
    reply[place] = 'buried'
  end
end
return reply
