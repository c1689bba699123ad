#!lua flags=allow-oom
-- Forgets a run that has been idle and holds nothing, with its settings, its empty result stream, the list of its batches,
-- and the names that may be cancelled in it.
-- KEYS: 1 runs, 2 settings, 3 run, 4 backlog, 5 results, 6 open groups, 7 names that may be cancelled,
--       8 batches of the run
-- ARGV: 1 packed {run, idle_ms}
-- Reply: retired or in use
--@include call
local used_ms = call('ZSCORE', KEYS[1], A.run)
if used_ms and tonumber(used_ms) > now_ms - A.idle_ms then return 'in use' end
if call('EXISTS', KEYS[4], KEYS[6]) > 0 or call('XLEN', KEYS[5]) > 0 then return 'in use' end
call('ZREM', KEYS[1], A.run)
call('HDEL', KEYS[2], A.run)
call('UNLINK', KEYS[3], KEYS[5], KEYS[7], KEYS[8])
return 'retired'
