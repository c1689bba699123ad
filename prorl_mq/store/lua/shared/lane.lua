-- Puts a job on a stream. `A.lanes` names the streams of the call that are a task family's lane: one that there is not,
-- or not any more, is made with its consumer group, and listed in the last key.
local function enqueue(stream, ref, ...)
  local lane = A.lanes[stream]
  if lane and call('SADD', KEYS[#KEYS], lane) == 1 then
    redis.pcall('XGROUP', 'CREATE', stream, A.consumers, '0', 'MKSTREAM')
  end
  return put(stream, ref, ...)
end
