-- Puts a job on a stream under a new token. The entry holds what its reader needs to begin at once: tab-separated the
-- token, what the job has been through, its deadline, its trajectory's key, and the length of what its last stage carried
-- on, which follows where it is short. A lone job's entry has its group's spec beside them.
-- Answers the entry's id and the token.
local CARRIED = 2048
local function put(stream, ref, attempts, deaths, releases, deadline, trajectory, carry, spec)
  local token = next_token()
  carry = carry or ''
  local facts = token .. '\t' .. (attempts or 0) .. '\t' .. (deaths or 0) .. '\t' .. (releases or 0) .. '\t'
    .. (deadline or 0) .. '\t' .. (trajectory or '') .. '\t' .. #carry .. '\t' .. (#carry <= CARRIED and carry or '')
  return add(stream, 'j', ref, nil, facts, spec), token
end

-- The worker that has read an entry and not committed it, and for how many ms; nothing where nobody has, or where the
-- stream or its group is lost.
local function reader(stream, entry)
  local found = redis.pcall('XPENDING', stream, A.consumers, entry, entry, 1)
  local row = not found.err and found[1]
  if row then return row[2], tonumber(row[3]) end
end
