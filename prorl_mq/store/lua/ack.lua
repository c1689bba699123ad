#!lua flags=allow-oom
-- Deletes results that the trainer has: the record, its group and its blobs, and its place among those that the
-- trainer's consumer group was given. The stream stays, empty, for as long as its run: one made again could give a cursor
-- that the trainer has passed. Where there is an archive with room, a group's record goes to what waits for it, and its
-- blobs stay until `shelve`.
-- KEYS: 1 results, 2 run, 3 the run's groups that wait for the archive, 4 runs with such groups, 5 state of the archive,
--       then per item: group, batch, and its blobs; last: un-acknowledged groups
-- ARGV: 1 packed {run, consumers, ttl_ms, items = {{cursor, ref, blobs, bytes, admitted}}}
-- Reply per item: acked, already
--@include call
local reply, key, unacked, waiting, waiting_bytes, passed = {}, 6, 0, 0, 0, 0
local state = call('HMGET', KEYS[5], 'until_ms', 'most_bytes', 'bytes')
local archive = state[1] and tonumber(state[1]) > now_ms and takes_entries(KEYS[3])
local room = tonumber(state[2] or 0) - tonumber(state[3] or 0)
for place, item in ipairs(A.items) do
  local blobs = item[3]
  local kept = archive and item[5] == 1 and call('XRANGE', KEYS[1], item[1], item[1])[1]
  call('XACK', KEYS[1], A.consumers, item[1])
  if call('XDEL', KEYS[1], item[1]) == 1 then
    local digest = call('HGET', KEYS[key], 'digest')
    call('UNLINK', KEYS[key])
    if kept and item[4] > room then
      passed, kept = passed + 1, nil
    end
    if kept then
      add(KEYS[3], 'r', kept[2][2], nil, string.format('%.0f', item[4]))
      waiting, waiting_bytes, room = waiting + 1, waiting_bytes + item[4], room - item[4]
    else
      for at = key + 2, key + 1 + blobs, 1000 do
        call('UNLINK', unpack(KEYS, at, math.min(at + 999, key + 1 + blobs)))
      end
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
if waiting > 0 then
  call('ZADD', KEYS[4], 'NX', now_ms, A.run)
  call('HINCRBY', KEYS[5], 'groups', waiting)
  call('HINCRBY', KEYS[5], 'bytes', waiting_bytes)
end
if passed > 0 then call('HINCRBY', KEYS[5], 'passed_over', passed) end
if unacked > 0 and call('HINCRBY', KEYS[#KEYS], A.run, -unacked) <= 0 then call('HDEL', KEYS[#KEYS], A.run) end
return reply
