#!lua flags=allow-oom
-- Takes or renews the lease on a maintenance duty. Each renewal writes another beat. A process that
-- has seen the same beat for one and a half leases by its own clock takes the duty over, whatever Redis's clock says.
-- KEYS: 1 duty   ARGV: 1 packed {name, beat, lease_ms, seen}; seen: the holder that is dead
-- Reply: held, or the holder and its beat
--@include call
local holder = call('GET', KEYS[1])
if holder and string.match(holder, '^[^\t]*') ~= A.name and holder ~= A.seen then return holder end
call('SET', KEYS[1], A.name .. '\t' .. A.beat, 'PX', A.lease_ms)
return 'held'
