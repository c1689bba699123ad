#!lua
-- Writes into the mirror, unless another process has taken it over.
-- KEYS: 1 rq:projector   ARGV: 1 packed {owner, commands}: each command with its keys, which are all of `rq:*`
-- Reply: 1, or 0 if nothing was written
local writer = cmsgpack.unpack(ARGV[1])
if redis.call('HGET', KEYS[1], 'owner') ~= writer.owner then return 0 end
for _, command in ipairs(writer.commands) do redis.call(unpack(command)) end
return 1
