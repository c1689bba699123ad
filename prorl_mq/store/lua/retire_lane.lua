#!lua flags=allow-oom
-- Removes the lane of a node that is gone, if nothing is on it.
-- KEYS: 1 lanes, 2 lane   ARGV: 1 packed {node}
-- Reply: retired or in use
--@include call
if call('XLEN', KEYS[2]) > 0 then return 'in use' end
call('UNLINK', KEYS[2])
call('SREM', KEYS[1], A.node)
return 'retired'
