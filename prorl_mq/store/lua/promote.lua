#!lua flags=allow-oom
-- Puts delayed jobs whose back-off is over on the stream they continue on.
-- KEYS: 1 delayed, 2 events, then per item: job, stream
-- ARGV: 1 packed {rules, by, events_cap, items = {ref}}
-- Reply per item: promoted, early, stale, gone
--@include call
--@include entry
local reply, key, done = {}, 3, {}
for place, ref in ipairs(A.items) do
  local job, stream = KEYS[key], KEYS[key + 1]
  key = key + 2
  local f = call('HMGET', job, 'state', 'stage', 'stream', 'line', 'attempts', 'deaths', 'releases', 'deadline',
    'trajectory', 'carry')
  local to = f[1] and A.rules[f[1]]
  local score = call('ZSCORE', KEYS[1], ref)
  if not to or f[3] ~= stream then
    reply[place] = f[1] and 'stale' or 'gone'
    if not to then done[#done + 1] = ref end
  elseif not score or tonumber(score) > now_ms then
    reply[place] = 'early'
  else
    local added, token = put(stream, ref, unpack(f, 5, 10))
    call('HSET', job, 'state', to, 'token', token, 'entry', added, 'line', note(f[4], ref, 'promote', f[2], '', A.by))
    done[#done + 1] = ref
    reply[place] = 'promoted'
  end
end
remove_all('ZREM', KEYS[1], done)
publish(KEYS[2])
return reply
