#!lua flags=allow-oom
-- Makes streams and their consumer group where they are missing; nothing that is already on a stream is skipped.
-- KEYS: streams   ARGV: 1 packed {consumers}
-- Reply: how many groups were made
local A, call = cmsgpack.unpack(ARGV[1]), redis.call
local made = 0
for _, stream in ipairs(KEYS) do
  local found = false
  if call('EXISTS', stream) == 1 then
    for _, about in ipairs(call('XINFO', 'GROUPS', stream)) do
      for at = 1, #about, 2 do found = found or (about[at] == 'name' and about[at + 1] == A.consumers) end
    end
  end
  if not found then
    call('XGROUP', 'CREATE', stream, A.consumers, '0', 'MKSTREAM')
    made = made + 1
  end
end
return made
