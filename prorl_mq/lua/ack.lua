#!lua flags=allow-oom
-- Deletes results that the trainer has: the record, its group and its blobs.
-- KEYS: 1 results, 2 run, then per item: group, batch, and its blobs
-- ARGV: 1 packed {items = {{cursor, ref, blobs, bytes, digest_field}}}
-- Reply per item: acked, already
--@include call
local reply, key = {}, 3
for place, item in ipairs(A.items) do
  local blobs = item[3]
  if call('XDEL', KEYS[1], item[1]) == 1 then
    local digest = call('HGET', KEYS[key], 'digest')
    call('UNLINK', KEYS[key], unpack(KEYS, key + 2, key + 1 + blobs))
    if digest and call('EXISTS', KEYS[key + 1]) == 1 then call('HSET', KEYS[key + 1], 'g:' .. item[2], digest) end
    if call('EXISTS', KEYS[2]) == 1 then call('HINCRBY', KEYS[2], 'bytes', -item[4]) end
    reply[place] = 'acked'
  else
    reply[place] = 'already'
  end
  key = key + 2 + blobs
end
if call('XLEN', KEYS[1]) == 0 then
  local groups = call('XINFO', 'GROUPS', KEYS[1])
  if #groups == 0 then call('DEL', KEYS[1]) end
end
return reply
