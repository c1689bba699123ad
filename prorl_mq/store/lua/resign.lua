#!lua flags=allow-oom
-- Gives the lease on a maintenance duty up, so that another process takes over at once.
-- KEYS: 1 duty   ARGV: 1 packed {name}
-- Reply: resigned, or not held
--@include call
if string.match(call('GET', KEYS[1]) or '', '^[^\t]*') ~= A.name then return 'not held' end
call('UNLINK', KEYS[1])
return 'resigned'
