#!lua flags=allow-oom
-- Lets a run arrive here no more by a departure that its cell takes back. No caller who has begun before writes from now on.
-- The last call, with nothing left to remove, notes where the run stays.
-- KEYS: 1 away, 2 run, 3 arrivals, then keys of the run that had come   ARGV: 1 packed {run, id, cell, mover, last, ttl_ms};
--       last: the server on which all keys were looked for; empty: there are more
-- Reply: refused; here: that departure has brought the run, or it was here before; left: it has left from here; restarted:
-- this is another server; stale: another caller has begun meanwhile
--@include call
local f = call('HMGET', KEYS[1], 'way', 'mover')
if call('HGET', KEYS[3], A.run) == A.id or (not f[1] and call('EXISTS', KEYS[2]) == 1) then return 'here' end
if f[1] == 'left' then return 'left' end
if #KEYS == 3 and A.last == '' then
  if f[1] == 'arriving' then call('HSET', KEYS[1], 'mover', A.mover) else call('HDEL', KEYS[1], 'mover', 'from') end
  return 'refused'
end
if f[1] ~= 'arriving' then return 'refused' end
if f[2] ~= A.mover then return 'stale' end
for at = 4, #KEYS, 1000 do call('UNLINK', unpack(KEYS, at, math.min(at + 999, #KEYS))) end
if A.last ~= '' then
  if A.last ~= server then return 'restarted' end
  call('HSET', KEYS[1], 'way', 'gone', 'cell', A.cell, 'id', A.id)
  call('HDEL', KEYS[1], 'mover', 'from', 'server', 'pages')
  call('PEXPIRE', KEYS[1], A.ttl_ms)
end
return 'refused'
