#!lua
-- Takes a run over from another cell, in steps. `begin`: from now on no script writes to it here but this one. `page`:
-- writes some of its keys. `open`: puts it where the duties find it; from now on it runs here. A repeat of a page
-- changes nothing; of two callers the one that began last writes.
-- KEYS: 1 away, 2 run, 3 runs, 4 settings, 5 un-acknowledged groups, 6 results, 7 departed, 8 answers, 9 DAPO batches,
--       10 carrying, 11 paused runs, 12 names that may be cancelled, 13 bell, 14 bell of the draw, then those of the page
-- ARGV: 1 packed {run, step, cell, mover, id, ttl_ms, bytes, facts, items = {{command, key, first, last}}}, the words of the
--       commands; key: its place among those of the page; first and last: places of words in ARGV
-- Reply: begun; here and the id of the departure that brought it; left: this cell has not given it away wholly; stale:
-- another caller has begun; written; opened
--@include call
local f = call('HMGET', KEYS[1], 'way', 'mover', 'from')
local here = not f[1] and call('EXISTS', KEYS[2]) == 1
if here then return {'here', call('HGET', KEYS[2], 'arrived') or ''} end
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
if A.step == 'page' then
  if f[1] == 'gone' then call('HSET', KEYS[1], 'way', 'arriving', 'cell', f[3]) end
  call('PERSIST', KEYS[1])
  for _, item in ipairs(A.items) do
    local key, first, last = KEYS[14 + item[2]], item[3], item[4]
    local done
    if item[1] == 'XGROUP' then done = redis.pcall('XGROUP', ARGV[first], key, unpack(ARGV, first + 1, last))
    else done = redis.pcall(item[1], key, unpack(ARGV, first, last)) end
    local again = type(done) == 'table' and done.err
    if again and not (string.find(again, 'equal or smaller', 1, true) or string.find(again, 'BUSYGROUP', 1, true)) then
      return redis.error_reply(again)
    end
  end
  return {'written', ''}
end
local facts = A.facts
if call('EXISTS', KEYS[7]) == 1 then call('RENAME', KEYS[7], KEYS[6]) end
call('UNLINK', KEYS[8])
call('ZADD', KEYS[3], facts.seen or now_ms, A.run)
call('HSET', KEYS[2], 'arrived', A.id, 'seen', now_ms)
if A.bytes >= 0 then call('HSET', KEYS[2], 'bytes', A.bytes) end
if call('EXISTS', KEYS[6]) == 1 then
  local about = call('XINFO', 'STREAM', KEYS[6])
  for at = 1, #about, 2 do
    if about[at] == 'last-generated-id' then call('HSET', KEYS[2], 'came_to', about[at + 1]) end
  end
end
if facts.settings then call('HSET', KEYS[4], A.run, facts.settings) end
if facts.unacked then call('HSET', KEYS[5], A.run, facts.unacked) end
if facts.carrying then call('ZADD', KEYS[10], facts.carrying, A.run) end
if facts.paused then call('ZADD', KEYS[11], facts.paused, A.run) end
for _, name in ipairs(facts.cancellable or {}) do call('SADD', KEYS[12], name) end
for at = 1, #(facts.answers or {}), 2 do call('ZADD', KEYS[8], facts.answers[at + 1], facts.answers[at]) end
for at = 1, #(facts.dapo or {}), 2 do
  call('ZADD', KEYS[9], facts.dapo[at + 1], facts.dapo[at])
  call('ZADD', KEYS[14], 0, facts.dapo[at])
end
call('ZADD', KEYS[13], 0, A.run)
call('DEL', KEYS[1])
return {'opened', A.id}
