#!lua flags=allow-oom
-- Takes a run back that has left, as if it had not, unless it may be open in the other cell. Then it is kept from being
-- given again, until the caller knows whether that cell has it: `sure`, it never will, or `keep`, it has.
-- KEYS: 14 of `held`, 15 intakes, 16 intakes of the tenant   ARGV: 1 packed {run, name, id, step}; id: of the departure
-- Reply: restored; given: it may be open in the other cell; kept; gone: it has not left by that departure
--@include call
--@include held
local f = call('HMGET', KEYS[1], 'way', 'id', 'given', 'back', 'facts', 'intake')
if f[1] ~= 'left' or f[2] ~= A.id then return 'gone' end
if A.step == 'keep' then
  call('HDEL', KEYS[1], 'back')
  return 'kept'
end
if f[3] and not (A.step == 'sure' and f[4]) then
  call('HSET', KEYS[1], 'back', 1)
  return 'given'
end
call('UNLINK', KEYS[8])
if call('EXISTS', KEYS[6], KEYS[7]) == 2 then  -- answers that were given meanwhile: somebody waits for them
  for _, entry in ipairs(call('XRANGE', KEYS[6], '-', '+')) do
    call('ZADD', KEYS[8], now_ms, add(KEYS[7], entry[2][1], entry[2][2]))
  end
end
put_back(cmsgpack.unpack(f[5]))
if f[6] then
  call('SADD', KEYS[15], A.run)
  call('SADD', KEYS[16], A.name)
end
return 'restored'
