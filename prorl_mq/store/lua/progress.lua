#!lua flags=allow-oom
-- Notes how far one backend is with the weights that were announced last.
-- KEYS: 1 policy, 2 update   ARGV: 1 packed {id, address}, 2 how far it is
-- Reply: noted, or stale: something else was announced meanwhile
--@include call
if call('HGET', KEYS[1], 'id') ~= A.id then return 'stale' end
call('HSET', KEYS[2], A.address, ARGV[2])
return 'noted'
