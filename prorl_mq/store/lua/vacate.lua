#!lua flags=allow-oom
-- Removes keys of a run that another cell has taken over, and at last all but a note of where it is.
-- KEYS: 1 away, 2 departed, then keys of the run   ARGV: 1 packed {id, last, ttl_ms}; id: of the departure; last: the
--       server on which all of the run's keys were looked for; empty: there are more
-- Reply: vacated; already: the run has not left by that departure, or its keys are gone; restarted: this is another server
--@include call
local f = call('HMGET', KEYS[1], 'way', 'id')
if f[1] ~= 'left' or f[2] ~= A.id then return 'already' end
for at = 3, #KEYS, 1000 do call('UNLINK', unpack(KEYS, at, math.min(at + 999, #KEYS))) end
if A.last ~= '' then
  if A.last ~= server then return 'restarted' end
  call('UNLINK', KEYS[2])
  call('HSET', KEYS[1], 'way', 'gone')
  call('HDEL', KEYS[1], 'facts', 'given', 'back', 'intake')
  call('PEXPIRE', KEYS[1], A.ttl_ms)
end
return 'vacated'
