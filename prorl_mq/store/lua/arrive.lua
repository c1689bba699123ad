#!lua
-- Takes a run over from another cell, in steps. `begin`: from now on no script writes to it here but this one. `clear`:
-- removes what an earlier move has left of it. `page`: writes some of its keys. `open`: puts it where the duties find it;
-- from now on it runs here. `over`: the other cell has removed it. A repeat of a page changes nothing; of two callers the
-- one that began last writes. All of a run is written on one server: one that has lost its last second begins again.
-- KEYS: 14 of `held`, 15 arrivals, then those of the page
-- ARGV: 1 packed {run, step, cell, mover, id, first, ttl_ms, bytes, facts, items = {{command, key, first, last}}}, the words
--       of the commands; id: of the departure, empty before it; first: nothing was written before; key: its place among
--       those of the page; first and last: places of words in ARGV
-- Reply: begun; here and the id of the departure that brought it, also if it has ended or gone since; left: this cell has
-- not given it away wholly; stale: another caller has begun; restarted: this is not the server of the earlier pages;
-- cleared; written; opened; over
--@include call
--@include held
local known = call('HGET', KEYS[15], A.run)
if A.step == 'over' then
  if known == A.id then call('HDEL', KEYS[15], A.run) end
  return {'over', ''}
end
if known and known == A.id then return {'here', known} end
local f = call('HMGET', KEYS[1], 'way', 'mover', 'from', 'server')
local here = not f[1] and call('EXISTS', KEYS[2]) == 1
if here then return {'here', known or ''} end
if f[1] == 'left' then return {'left', ''} end
if A.step == 'begin' and f[1] == 'gone' then  -- it may stay where it is: that is told until its first page comes
  call('HSET', KEYS[1], 'mover', A.mover, 'from', A.cell)
  call('PEXPIRE', KEYS[1], A.ttl_ms, 'GT')
  return {'begun', ''}
end
if A.step == 'begin' then
  call('HSET', KEYS[1], 'way', 'arriving', 'cell', A.cell, 'mover', A.mover)
  -- Until a page comes, a caller who gives up is soon forgotten.
  if not f[1] or call('PTTL', KEYS[1]) >= 0 then call('PEXPIRE', KEYS[1], A.ttl_ms) end
  return {'begun', ''}
end
if f[2] ~= A.mover then return {'stale', ''} end  -- a run that has gone has none before it is to come back
if A.first then
  if f[1] == 'gone' then call('HSET', KEYS[1], 'way', 'arriving', 'cell', f[3]) end
  call('HSET', KEYS[1], 'server', server, 'pages', 0)
  call('PERSIST', KEYS[1])
elseif f[4] ~= server then return {'restarted', ''} end
if A.step == 'clear' then
  for at = 16, #KEYS, 1000 do call('UNLINK', unpack(KEYS, at, math.min(at + 999, #KEYS))) end
  return {'cleared', ''}
end
if A.step == 'page' then
  for _, item in ipairs(A.items) do
    local key, first, last = KEYS[15 + item[2]], item[3], item[4]
    local done
    if item[1] == 'XGROUP' then done = redis.pcall('XGROUP', ARGV[first], key, unpack(ARGV, first + 1, last))
    else done = redis.pcall(item[1], key, unpack(ARGV, first, last)) end
    local again = type(done) == 'table' and done.err
    if again and not (string.find(again, 'equal or smaller', 1, true) or string.find(again, 'BUSYGROUP', 1, true)) then
      return redis.error_reply(again)
    end
  end
  call('HINCRBY', KEYS[1], 'pages', 1)
  return {'written', ''}
end
call('UNLINK', KEYS[8])
put_back(A.facts)
call('HSET', KEYS[15], A.run, A.id)
if A.bytes >= 0 then call('HSET', KEYS[2], 'bytes', A.bytes) end
if call('EXISTS', KEYS[6]) == 1 then
  local about = call('XINFO', 'STREAM', KEYS[6])
  for at = 1, #about, 2 do
    if about[at] == 'last-generated-id' then call('HSET', KEYS[2], 'came_to', about[at + 1]) end
  end
end
return {'opened', A.id}
