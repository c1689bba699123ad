#!lua flags=allow-oom
-- Removes a lane that nobody needs, if nothing is on it: that of a node that is gone, or of a task family.
-- KEYS: 1 lanes, or lanes of task families, 2 lane   ARGV: 1 packed {name}; name: how the first key lists it
-- Reply: retired or in use
--@include call
if call('XLEN', KEYS[2]) > 0 then return 'in use' end
call('UNLINK', KEYS[2])
call('SREM', KEYS[1], A.name)
return 'retired'
