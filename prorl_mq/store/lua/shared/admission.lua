-- Where jobs begin: by `admit`, and by `submit` while nothing waits for its turn. A: state, stage, run.
local ends, begun_jobs, begun_groups = {}, 0, 0

-- Who has the duty to admit: two that count by themselves could pass a quota.
local function admitting(duty)
  local holder = call('GET', duty)
  return holder and string.match(holder, '^[^\t]*')
end

-- Whether nothing of the run is admitted now.
local function paused(paused_runs)
  return tonumber(call('ZSCORE', paused_runs, A.run) or 0) > now_ms
end

-- Makes jobs of a group's next samples, `take` of `wanted`. `key`: the place in KEYS of the first job, whose entry has the
-- group's `spec` where that is given.
local function begin(ref, group, first, take, wanted, total_ms, at, stream, key, spec)
  local deadline, submitted = now_ms + total_ms, at and 'submitted_ms=' .. at
  call('UNLINK', unpack(KEYS, key, key + take - 1))  -- what lingers of an acknowledged group of that name, with its TTL
  for index = first, first + take - 1 do
    local job = ref .. ':' .. index
    local entry, token = enqueue(stream, job, 0, 0, 0, deadline, '', '', spec)
    spec = nil
    call('HSET', KEYS[key], 'state', A.state, 'stage', A.stage, 'token', token, 'entry', entry, 'stream', stream,
      'deadline', deadline, 'at', now_ms, 'line', note('', job, 'admit', A.stage, '', '', submitted))
    ends[#ends + 1] = deadline
    ends[#ends + 1] = job
    key = key + 1
  end
  call('HSET', group, 'next', first + take, 'wanted', wanted - take)
  call('HINCRBY', group, 'open', take)
  call('HINCRBY', group, 'changes', 1)
  begun_jobs = begun_jobs + take
  begun_groups = begun_groups + (first == 0 and 1 or 0)
end

-- Counts what has begun against its run, and sets its deadlines. At the end of a call.
local function count_begun(deadlines, in_flight, unacked)
  for at = 1, #ends, 1000 do
    call('ZADD', deadlines, unpack(ends, at, math.min(at + 999, #ends)))
  end
  if begun_jobs > 0 then call('HINCRBY', in_flight, A.run, begun_jobs) end
  if begun_groups > 0 then call('HINCRBY', unacked, A.run, begun_groups) end
end
