#!lua flags=allow-oom
-- Moves groups from a reservoir to their run's backlog: from now on they are a batch's groups in play.
-- KEYS: 1 batch, 2 reservoir, 3 drawn, 4 run, 5 backlog, 6 bell, 7 open groups of the batch,
--       then per item: group, the batch that brought it, open groups of that
-- ARGV: 1 packed {batch, run, open, drawn, version, ttl_ms, items = {ref}}: `drawn` is how many the caller saw drawn before; `open`
--       is the phase in which a batch draws
-- Reply: how many were drawn, or -1 when the batch is not as the caller saw it
--@include call
--@include batch
local B = KEYS[1]
local f = call('HMGET', B, 'phase', 'drawn')
if f[1] ~= A.open or tonumber(f[2] or 0) ~= A.drawn then return -1 end
local count = 0
for place, ref in ipairs(A.items) do
  local group, origin, theirs = unpack(KEYS, 5 + 3 * place, 7 + 3 * place)
  local g = call('HMGET', group, 'next', 'base', 'ahead_us')
  if call('ZREM', KEYS[2], ref) == 1 and g[1] then
    local order = call('HINCRBY', KEYS[4], 'order', 1)
    call('HSET', group, 'batch', A.batch, 'order', order)
    call('HINCRBY', group, 'changes', 1)
    if A.version then call('HSET', group, 'version', A.version) end
    call('ZADD', KEYS[3], order, ref)
    local score = tonumber(g[2] or 0) + now_us - tonumber(g[3] or 0) + place
    call('ZADD', KEYS[5], string.format('%.0f', score), ref)
    if origin ~= B then
      call('SMOVE', theirs, KEYS[7], ref)
      call('HINCRBY', B, 'joined', 1)
      if call('EXISTS', origin) == 1 then
        call('HINCRBY', origin, 'closed', 1)
        call('HINCRBY', origin, 'v:drawn', 1)
      end
      let_go(origin, theirs)
    end
    count = count + 1
  end
end
if count > 0 then
  call('HINCRBY', B, 'drawn', count)
  call('ZADD', KEYS[6], 0, A.run)
end
return count
