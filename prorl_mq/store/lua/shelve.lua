#!lua flags=allow-oom
-- Lets go of acknowledged groups that the archive has, or passes over: their records and blobs.
-- KEYS: 1 the run's groups that wait for the archive, 2 runs with such groups, 3 state of the archive, then per item its
--       blobs
-- ARGV: 1 packed {run, counter, items = {{entry, blobs}}}; counter: the field of the state that counts them
-- Reply per item: shelved, already
--@include call
local reply, key, groups, bytes = {}, 4, 0, 0
for place, item in ipairs(A.items) do
  local found = call('XRANGE', KEYS[1], item[1], item[1])[1]
  if found then
    call('XDEL', KEYS[1], item[1])
    for at = key, key + item[2] - 1, 1000 do
      call('UNLINK', unpack(KEYS, at, math.min(at + 999, key + item[2] - 1)))
    end
    groups, bytes = groups + 1, bytes + tonumber(found[2][4])
    reply[place] = 'shelved'
  else
    reply[place] = 'already'
  end
  key = key + item[2]
end
if groups > 0 then
  call('HINCRBY', KEYS[3], 'groups', -groups)
  call('HINCRBY', KEYS[3], 'bytes', -bytes)
  call('HINCRBY', KEYS[3], A.counter, groups)
  if call('XLEN', KEYS[1]) == 0 then
    call('UNLINK', KEYS[1])
    call('ZREM', KEYS[2], A.run)
  end
end
return reply
