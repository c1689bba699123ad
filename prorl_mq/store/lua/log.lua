#!lua flags=allow-oom
-- Appends records to jobs' logs of turns: what a later attempt continues with. Only who has the lease may, and records
-- come in their order. A turn that was logged makes good for the workers that have died before it.
-- KEYS: 1 events, then per item: job
-- ARGV: 1 packed {rules, consumers, worker, events_cap, stage, turn,
--       items = {{ref, token, place, bytes, saved, detail, saved_in}}}, then bytes; `turn`: the first byte of a record
--       of a turn; a place below 0 gives the log up
-- Reply per item: logged, already, dropped, stale, or the place that is next where records before it are missing
--@include call
--@include turns
local reply = {}
for place, item in ipairs(A.items) do
  local ref, token, number, job = item[1], item[2], item[3], KEYS[1 + place]
  local f = call('HMGET', job, 'state', 'token', 'owner', 'logged', 'deaths', 'line')
  local logged = tonumber(f[4]) or 0
  if not (f[1] and A.rules[f[1]]) or f[2] ~= token or f[3] ~= A.worker then
    reply[place] = 'stale'
  elseif number < 0 then
    forget_log(job, f[4])
    call('HSET', job, 'line', note(f[6], ref, 'log', A.stage, token, A.worker, 'given up'))
    reply[place] = 'dropped'
  elseif number < logged then
    reply[place] = 'already'
  elseif number > logged then
    reply[place] = tostring(logged)
  else
    local record = raw(item[4])
    call('HSET', job, 'log:' .. number, record, 'logged', number + 1)
    if string.sub(record, 1, 1) == A.turn then call('HSET', job, 'progress', f[5] or 0) end
    if item[5] > 0 then call('HSET', job, 'saved', raw(item[5]), 'saved_in', item[7]) end
    if item[6] ~= '' then call('HSET', job, 'line', note(f[6], ref, 'log', A.stage, token, A.worker, item[6])) end
    reply[place] = 'logged'
  end
end
publish(KEYS[1])
return reply
