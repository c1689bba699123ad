-- Puts a run that has come where the duties find it, with what it held of keys that all runs share.
-- KEYS: 1 away, 2 run, 3 runs, 4 settings, 5 un-acknowledged groups, 6 results, 7 departed, 8 answers, 9 DAPO batches,
--       10 carrying, 11 paused runs, 12 names that may be cancelled, 13 bell, 14 bell of the draw
local function put_back(facts)
  if call('EXISTS', KEYS[7]) == 1 then call('RENAME', KEYS[7], KEYS[6]) end
  call('ZADD', KEYS[3], facts.seen or now_ms, A.run)
  call('HSET', KEYS[2], 'seen', now_ms)
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
end
