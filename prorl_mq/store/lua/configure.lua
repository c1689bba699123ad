#!lua
-- Stores a run's settings. A run that nobody has used yet is known from now on.
-- KEYS: 1 settings, 2 runs, 3 run   ARGV: 1 packed {run}, 2 the settings
-- Reply: configured
--@include call
call('HSET', KEYS[1], A.run, ARGV[2])
call('ZADD', KEYS[2], now_ms, A.run)
call('HSET', KEYS[3], 'seen', now_ms)
call('PERSIST', KEYS[3])
return 'configured'
