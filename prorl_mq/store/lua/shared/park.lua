-- Parks a job that is marked to pause, in the place of putting it on a stream or aside: nobody has it, its total deadline
-- stands still, and nothing of it waits for EVAL. A mark is worth nothing past its time. The first keys of a call are:
-- paused jobs, deadlines, bytes waiting for EVAL.
local paused_jobs, timers, eval_bytes = table.remove(KEYS, 1), table.remove(KEYS, 1), table.remove(KEYS, 1)

-- The state of a job that is to be parked; nil for one that is not. `pause`: the end of its pause, in ms.
local function parks(state, pause)
  return pause and tonumber(pause) > now_ms and A.parks[state] or nil
end

local function park(to, job, ref, line, stage, pause)
  local bytes = call('HGET', job, 'bytes')
  if bytes then
    call('DECRBY', eval_bytes, bytes)
    call('HDEL', job, 'bytes')
  end
  call('ZREM', timers, ref)
  call('ZADD', paused_jobs, pause, ref)
  local token = next_token()
  call('HSET', job, 'state', to, 'token', token, 'entry', '', 'owner', '', 'parked', now_ms,
    'line', note(line, ref, 'park', stage, token, A.by or A.worker, 'until_ms=' .. pause))
end
