-- The fence of every commit: the caller's token must be the job's token, and its entry must still be pending.
-- Answers the next state, the reserved backend and the tokens that have committed; or nil with a refusal: already
-- (this token has committed), gone, stale, or the job's state.
local function commit(rules, job, stream, entry, token)
  local fields = call('HMGET', job, 'state', 'token', 'commits', 'backend')
  local state, commits = fields[1], fields[3] or ''
  if not state then return nil, 'gone' end
  if string.find(commits, token, 1, true) then return nil, 'already' end
  if fields[2] ~= token then return nil, 'stale' end
  local to = rules[state]
  if not to then return nil, state end
  if call('XACK', stream, A.consumers, entry) ~= 1 then return nil, 'stale' end
  call('XDEL', stream, entry)
  return to, fields[4], string.sub(commits .. token .. ' ', -1024)
end

-- Gives a backend reservation back. A backend that has left the pool is not brought back by it.
local function give_back(heap, job, backend)
  if backend and backend ~= '' then
    local left = call('ZADD', heap, 'XX', 'INCR', -1, backend)
    if left and tonumber(left) < 0 then call('ZADD', heap, 'XX', 0, backend) end
    call('HDEL', job, 'backend')
  end
end
