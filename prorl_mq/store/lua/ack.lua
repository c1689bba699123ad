#!lua flags=allow-oom
-- Deletes results that the trainer has: the record, its group and its blobs, and its place among those that the
-- trainer's consumer group was given. The stream stays, empty, for as long as its run: one made again could give a cursor
-- that the trainer has passed.
-- KEYS: 1 results, 2 run, then per item: group, batch, and its blobs; last: un-acknowledged groups
-- ARGV: 1 packed {run, consumers, ttl_ms, items = {{cursor, ref, blobs, bytes, admitted}}}
-- Reply per item: acked, already
--@include call
local reply, key, unacked = {}, 3, 0
for place, item in ipairs(A.items) do
  local blobs = item[3]
  call('XACK', KEYS[1], A.consumers, item[1])
  if call('XDEL', KEYS[1], item[1]) == 1 then
    local digest = call('HGET', KEYS[key], 'digest')
    call('UNLINK', KEYS[key])
    for at = key + 2, key + 1 + blobs, 1000 do
      call('UNLINK', unpack(KEYS, at, math.min(at + 999, key + 1 + blobs)))
    end
    if digest and call('EXISTS', KEYS[key + 1]) == 1 then
      call('HSET', KEYS[key + 1], 'g:' .. item[2], digest)
      call('PEXPIRE', KEYS[key + 1], A.ttl_ms, 'XX')  -- where no group of it is open
    end
    if call('EXISTS', KEYS[2]) == 1 then call('HINCRBY', KEYS[2], 'bytes', -item[4]) end
    unacked = unacked + item[5]
    reply[place] = 'acked'
  else
    reply[place] = 'already'
  end
  key = key + 2 + blobs
end
if unacked > 0 and call('HINCRBY', KEYS[#KEYS], A.run, -unacked) <= 0 then call('HDEL', KEYS[#KEYS], A.run) end
return reply
