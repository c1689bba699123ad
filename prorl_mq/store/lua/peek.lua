#!lua flags=allow-oom
-- Looks at intakes: the oldest messages of those that hold little, the size alone of those that hold much.
-- A stream's size is that of its first nodes times the number of its nodes. With as many nodes as messages are read it
-- is at least the size of those messages.
-- KEYS: intakes   ARGV: 1 messages of each, 2 bytes of an intake that is read here, 3 bytes that are read in all
-- Reply: for each intake that holds messages {its place, its bytes, their number, its messages or false}; one for which there is no room is left out, one that is no stream has -1 bytes
local count, most, room = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local found = {}
for place, key in ipairs(KEYS) do
  local length = redis.pcall('XLEN', key)
  if type(length) == 'table' then
    found[#found + 1] = {place, -1, 0, false}
  elseif length > 0 then
    local bytes = redis.call('MEMORY', 'USAGE', key, 'SAMPLES', count)
    if bytes > most then
      found[#found + 1] = {place, bytes, length, false}
    elseif bytes <= room then
      found[#found + 1] = {place, bytes, length, redis.call('XRANGE', key, '-', '+', 'COUNT', count)}
      room = room - bytes
    end
  end
end
return found
