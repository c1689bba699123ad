#!lua flags=allow-oom
-- Takes or renews the lease on a maintenance duty.
-- KEYS: 1 duty   ARGV: 1 packed {name, lease_ms}
-- Reply: held or taken (somebody else has it)
--@include call
local holder = call('GET', KEYS[1])
if holder and holder ~= A.name then return 'taken' end
call('SET', KEYS[1], A.name, 'PX', A.lease_ms)
return 'held'
