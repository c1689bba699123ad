-- The fence of every commit: the caller's token must be the job's token, and its entry must still be pending.
-- Answers the next state, the job's fields and the tokens that have committed; or nil with a refusal: already (this
-- token has committed), gone, stale, or the job's state. Committed entries are deleted by `delete_committed`.
local committed = {}
local BACKEND, LINE, BYTES, ENDING = 4, 5, 6, 7

local function commit(rules, job, stream, entry, token)
  local fields = call('HMGET', job, 'state', 'token', 'commits', 'backend', 'line', 'bytes', 'ending')
  local state, commits = fields[1], fields[3] or ''
  if not state then return nil, 'gone' end
  if string.find(' ' .. commits, ' ' .. token .. ' ', 1, true) then return nil, 'already' end
  if fields[2] ~= token then return nil, 'stale' end
  local to = rules[state]
  if not to then return nil, state end
  if call('XACK', stream, A.consumers, entry) ~= 1 then return nil, 'stale' end
  committed[#committed + 1] = entry
  if #commits > 1000 then commits = string.sub(commits, -500) end
  return to, fields, commits .. token .. ' '
end

local function delete_committed(stream)
  if #committed > 0 then call('XDEL', stream, unpack(committed)) end
end

-- Gives a backend reservation back. A backend that has left the pool is not brought back by it.
local function give_back(heap, job, backend)
  if backend and backend ~= '' then
    local left = call('ZADD', heap, 'XX', 'INCR', -1, backend)
    if left and tonumber(left) < 0 then call('ZADD', heap, 'XX', 0, backend) end
    call('HDEL', job, 'backend')
  end
end
