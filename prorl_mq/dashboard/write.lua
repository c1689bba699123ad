#!lua
-- Writes into the mirror if it is the writer's or, where `free` says so, has no owner.
-- KEYS: 1 rq:projector   ARGV: 1 packed {owner, free, commands}: each command with its keys, which are all of `rq:*`
-- Reply: 1, or 0 if nothing was written
local writer = cmsgpack.unpack(ARGV[1])
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner ~= writer.owner and (owner or not writer.free) then return 0 end
for _, command in ipairs(writer.commands) do redis.call(unpack(command)) end
return 1
