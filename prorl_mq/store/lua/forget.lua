#!lua flags=allow-oom
-- Forgets a dead worker: its consumer name goes where it holds nothing.
-- KEYS: 1 workers, 2 worker, then the stage streams it may have read   ARGV: 1 packed {name, consumers}
-- Reply: forgotten, alive, or pending (something of it must be reaped first)
--@include call
local due = call('ZSCORE', KEYS[1], A.name)
if due and tonumber(due) > now_ms then return 'alive' end
local pending = false
for key = 3, #KEYS do
  if call('EXISTS', KEYS[key]) == 1 then
    if #call('XPENDING', KEYS[key], A.consumers, '-', '+', 1, A.name) == 0 then
      call('XGROUP', 'DELCONSUMER', KEYS[key], A.consumers, A.name)
    else
      pending = true
    end
  end
end
if pending then return 'pending' end
call('ZREM', KEYS[1], A.name)
call('UNLINK', KEYS[2])
return 'forgotten'
