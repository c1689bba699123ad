#!lua flags=allow-oom
-- Ends consumers of a run's results that are more than a trainer has: those that hold nothing, the longest idle first.
-- Where that is not enough the group begins again, unless something was read or acknowledged since the caller deleted
-- what was acknowledged: it is given once more what was not, and nothing else. Nobody finds the group missing meanwhile.
-- KEYS: 1 results   ARGV: 1 packed {trainers, most, last, waiting}: the consumers that may be, and the group as it was
-- Reply: few, thinned, begun, or moved
--@include call
local function facts(about)
  local found = {}
  for at = 1, #about, 2 do found[about[at]] = about[at + 1] end
  return found
end

local now = {consumers = 0}
if call('EXISTS', KEYS[1]) == 1 then
  for _, about in ipairs(call('XINFO', 'GROUPS', KEYS[1])) do
    local each = facts(about)
    if each.name == A.trainers then now = each end
  end
end
local over = now.consumers - A.most
if over <= 0 then return 'few' end
local idle = {}
for _, about in ipairs(call('XINFO', 'CONSUMERS', KEYS[1], A.trainers)) do
  local each = facts(about)
  if each.pending == 0 then idle[#idle + 1] = each end
end
table.sort(idle, function(one, other) return one.idle > other.idle end)
for at = 1, math.min(over, #idle) do call('XGROUP', 'DELCONSUMER', KEYS[1], A.trainers, idle[at].name) end
if #idle >= over then return 'thinned' end
if now['last-delivered-id'] ~= A.last or now.pending ~= A.waiting then return 'moved' end
call('XGROUP', 'DESTROY', KEYS[1], A.trainers)
call('XGROUP', 'CREATE', KEYS[1], A.trainers, '0')
return 'begun'
