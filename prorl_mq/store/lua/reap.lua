#!lua flags=allow-oom
-- Takes jobs back whose worker is gone: a lease past its time, an entry read but never claimed, a lane without a node,
-- whose entries nobody has read.
-- The entry is never handed on: it is deleted and, unless the job ends, added again under another token, in front where
-- the job has a log of turns.
-- KEYS: 3 of `park`, 1 leases, 2 events, 3 deadlines, 4 due, 5 bytes waiting for EVAL,
--       then per item: job, heap, group, old stream, new stream, the one in front; last: jobs in flight, counters
-- ARGV: 1 packed {rules, parks, done, consumers, verb, by, events_cap,
--       items = {{ref, token, entry, stage, index, record, outcome, unread, deaths}}}, then bytes
-- Reply per item: requeued, ended, held (the lease was renewed meanwhile, or a worker has read it), stale, gone
--@include call
--@include entry
--@include fence
--@include park
--@include turns
--@include ending
local reply, key, unleased, ended = {}, 6, {}, {}
for place, item in ipairs(A.items) do
  local ref, token, entry, unread = item[1], item[2], item[3], item[8]
  local job, heap, group, from, stream, front = unpack(KEYS, key, key + 5)
  key = key + 6
  local f = call('HMGET', job, 'state', 'token', 'entry', 'backend', 'bytes', 'ending', 'stream', 'commits',
    'line', 'attempts', 'deaths', 'releases', 'deadline', 'trajectory', 'carry',
    'logged', 'pause')
  local to = f[1] and A.rules[f[1]]
  local lease = call('ZSCORE', KEYS[1], ref)
  if not f[1] then
    reply[place] = 'gone'
    unleased[#unleased + 1] = ref
  elseif not to or (f[2] or '') ~= token or f[3] ~= entry or f[7] ~= from then
    reply[place] = 'stale'
  elseif lease and tonumber(lease) > now_ms or unread and reader(from, entry) then
    reply[place] = 'held'
  else
    call('XACK', from, A.consumers, entry)
    call('XDEL', from, entry)
    give_back(heap, job, f[4])
    unleased[#unleased + 1] = ref
    call('HINCRBY', KEYS[#KEYS], 'reclaims:' .. A.verb, 1)
    if to == A.done then
      local outcome = f[6] or item[7]
      local line = note(f[9], ref, A.verb, item[4], token, A.by, outcome)
      end_job(to, job, line, group, ref, item[5], raw(item[6]), outcome, f[8] or '', f[16], f[5])
      ended[#ended + 1] = ref
      reply[place] = 'ended'
    else
      local deaths = (tonumber(f[11]) or 0) + item[9]
      local line, parked = note(f[9], ref, A.verb, item[4], token, A.by), parks(f[1], f[17])
      if f[16] then stream = front end
      call('HSET', job, 'stage', item[4], 'stream', stream, 'deaths', deaths)
      if parked then
        park(parked, job, ref, line, item[4], f[17])
      else
        local added, next = put(stream, ref, f[10], deaths, f[12], f[13], f[14], f[15])
        call('HSET', job, 'state', to, 'token', next, 'entry', added, 'owner', '', 'line', line)
      end
      reply[place] = 'requeued'
    end
  end
end
remove_all('ZREM', KEYS[1], unleased)
remove_all('ZREM', KEYS[3], ended)
land(KEYS[4], KEYS[5], KEYS[#KEYS - 1], KEYS[#KEYS])
publish(KEYS[2])
return reply
