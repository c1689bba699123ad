#!lua flags=allow-oom
-- Reserves the least loaded backend of a pool for a leased job, or keeps the one that it has.
-- KEYS: 1 heap, 2 backends' descriptions, 3 job
-- ARGV: 1 packed {rules, token, exclude = {address...}, prefer, bound}
-- Reply: {'assigned' | 'already', address, description}, or {'stale'}, {'none'}
--@include call
--@include fence
local f = call('HMGET', KEYS[3], 'state', 'token', 'backend')
if not (f[1] and A.rules[f[1]]) or f[2] ~= A.token then return {'stale'} end
local excluded = {}
for _, address in ipairs(A.exclude) do excluded[address] = true end
if f[3] and not excluded[f[3]] then
  local about = call('HGET', KEYS[2], f[3])
  if about and call('ZSCORE', KEYS[1], f[3]) then return {'already', f[3], about} end
end
local heap = call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
local best, load, preferred
for at = 1, #heap, 2 do
  local address, jobs = heap[at], tonumber(heap[at + 1])
  local about, out, limit = unpack(call('HMGET', KEYS[2], address, address .. '|out', address .. '|limit'))
  local full = limit and jobs >= tonumber(limit)
  if not excluded[address] and about and not out and not full then
    if not best then best, load = address, jobs end
    if address == A.prefer and jobs <= load + A.bound then preferred = address end
  end
end
best = preferred or best
if not best then return {'none'} end
give_back(KEYS[1], KEYS[3], f[3])
call('ZINCRBY', KEYS[1], 1, best)
call('HSET', KEYS[3], 'backend', best)
return {'assigned', best, call('HGET', KEYS[2], best)}
