#!lua flags=allow-oom
-- The size of an intake's oldest message, all of its fields together, without sending it to anybody.
-- KEYS: 1 intake
-- Reply: {its id, its bytes}, or {} where there is none
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not first then return {} end
local bytes = 0
for _, part in ipairs(first[2]) do bytes = bytes + #part end
return {first[1], bytes}
