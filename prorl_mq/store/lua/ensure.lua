#!lua flags=allow-oom
-- Makes streams and their consumer group where they are missing; nothing that is already on a stream is skipped. A lane
-- is made only while it is listed: one that was retired, or lost, since somebody looked would belong to nobody.
-- KEYS: streams; last, of a lane: where it is listed   ARGV: 1 packed {consumers, name}; name: how it is listed, or empty
-- Reply: how many groups were made
local A, call = cmsgpack.unpack(ARGV[1]), redis.call
local made, last = 0, #KEYS
if A.name ~= '' then
  if call('SISMEMBER', KEYS[last], A.name) == 0 then return 0 end
  last = last - 1
end
for at = 1, last do
  local stream = KEYS[at]
  local found = false
  if call('EXISTS', stream) == 1 then
    for _, about in ipairs(call('XINFO', 'GROUPS', stream)) do
      for i = 1, #about, 2 do found = found or (about[i] == 'name' and about[i + 1] == A.consumers) end
    end
  end
  if not found then
    call('XGROUP', 'CREATE', stream, A.consumers, '0', 'MKSTREAM')
    made = made + 1
  end
end
return made
