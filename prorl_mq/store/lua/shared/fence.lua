-- The fence of every commit: the caller's token must be the job's token, its entry must still be pending, and nobody
-- else may hold the lease. Answers the next state, the job's fields and the tokens that have committed; or nil with a
-- refusal: already (the caller has committed this), gone, stale, or the job's state. A job that was not claimed has been
-- with the caller for `held_ms`. Committed entries are deleted by `delete_committed`.
local committed = {}
local STATE, BACKEND, LINE, BYTES, ENDING, ATTEMPTS, DEATHS, RELEASES, DEADLINE = 1, 5, 6, 7, 8, 9, 10, 11, 12
local LOGGED, PAUSE = 14, 15

local function commit(rules, job, stream, ref, entry, token, held_ms)
  local fields = call('HMGET', job, 'state', 'token', 'commits', 'owner', 'backend', 'line', 'bytes', 'ending',
    'attempts', 'deaths', 'releases', 'deadline', 'stage', 'logged', 'pause')
  local state, commits, owner = fields[1], fields[3] or '', fields[4] or ''
  if not state then return nil, 'gone' end
  local mine = token .. '@' .. A.worker .. ' '
  if string.find(' ' .. commits, ' ' .. mine, 1, true) then return nil, 'already' end
  if fields[2] ~= token or string.find(' ' .. commits, ' ' .. token .. '@', 1, true) then return nil, 'stale' end
  if owner ~= '' and owner ~= A.worker then return nil, 'stale' end
  local to = rules[state]
  if not to then return nil, state end
  if call('XACK', stream, A.consumers, entry) ~= 1 then return nil, 'stale' end
  if owner == '' then
    fields[LINE] = note(fields[LINE], ref, 'claim', fields[13], token, A.worker, '', now_ms - held_ms)
  end
  committed[#committed + 1] = entry
  if #commits > 2000 then commits = string.match(commits, ' (.*)', -1000) end
  return to, fields, commits .. mine
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
