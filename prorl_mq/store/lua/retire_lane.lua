#!lua flags=allow-oom
-- Removes the lanes of a node that is gone, or that of a task family which nobody needs, if nothing is on them.
-- KEYS: 1 lanes, or lanes of task families, then each: lane   ARGV: 1 packed {name}; name: how the first key lists it
-- Reply: retired or in use
--@include call
for key = 2, #KEYS do
  if call('XLEN', KEYS[key]) > 0 then return 'in use' end
end
call('UNLINK', unpack(KEYS, 2))
call('SREM', KEYS[1], A.name)
return 'retired'
