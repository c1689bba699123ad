-- Adds to a run's results. Its trainer's consumer group is made before the first of them, at the beginning: what such a
-- group was given and does not wait for is deleted as acknowledged, and a group that a trainer made later, at `$`, would
-- look as if it had been given all that lies there.
local function add_result(stream, field, value)
  if call('XLEN', stream) == 0 then redis.pcall('XGROUP', 'CREATE', stream, A.trainers, '0', 'MKSTREAM') end
  return add(stream, field, value)
end
