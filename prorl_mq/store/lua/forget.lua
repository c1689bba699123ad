#!lua flags=allow-oom
-- Forgets a dead worker: its consumer name goes where it holds nothing. A stream may have lost its consumer group with
-- the last second before a restart: nobody holds anything there.
-- KEYS: 1 workers, 2 worker, then the stage streams it may have read   ARGV: 1 packed {name, consumers}
-- Reply: forgotten, alive, or pending (something of it must be reaped first)
--@include call
local due = call('ZSCORE', KEYS[1], A.name)
if due and tonumber(due) > now_ms then return 'alive' end
local pending = false
for key = 3, #KEYS do
  local held = redis.pcall('XPENDING', KEYS[key], A.consumers, '-', '+', 1, A.name)
  if held.err then
    if not string.find(held.err, 'NOGROUP', 1, true) then error(held) end
  elseif #held == 0 then
    call('XGROUP', 'DELCONSUMER', KEYS[key], A.consumers, A.name)
  else
    pending = true
  end
end
if pending then return 'pending' end
call('ZREM', KEYS[1], A.name)
call('UNLINK', KEYS[2])
return 'forgotten'
