#!lua flags=allow-oom
-- Gives groups of a run's carry-over to a batch, in their old order; a parked one is due again, for the batch's filter.
-- KEYS: 1 batch, 2 carried, 3 drawn, 4 due, 5 carrying, 6 open groups of the batch,
--       then per item: group, the batch that left it, open groups of that
-- ARGV: 1 packed {batch, run, open, ttl_ms, items = {ref}}: `open` is the phase in which a batch takes groups over
-- Reply: how many of them are due, or -1 when the batch takes none
--@include call
--@include batch
local B = KEYS[1]
if call('HGET', B, 'phase') ~= A.open then return -1 end
local count, due = 0, 0
for place, ref in ipairs(A.items) do
  local group, origin, theirs = unpack(KEYS, 4 + 3 * place, 6 + 3 * place)
  local order = call('ZSCORE', KEYS[2], ref)
  if order then
    call('ZREM', KEYS[2], ref)
    call('ZADD', KEYS[3], order, ref)
    call('HSET', group, 'batch', A.batch)
    call('SMOVE', theirs, KEYS[6], ref)
    let_go(origin, theirs)
    call('HINCRBY', group, 'carries', 1)
    call('HINCRBY', group, 'changes', 1)
    if call('HDEL', group, 'parked') == 1 then
      add(KEYS[4], 'g', ref)
      due = due + 1
    end
    count = count + 1
  end
end
if count > 0 then
  call('HINCRBY', B, 'joined', count)
  call('HINCRBY', B, 'carried_in', count)
end
if call('EXISTS', KEYS[2]) == 0 then call('ZREM', KEYS[5], A.run) end
return due
