-- Removes a job's log of turns. `logged`: how many records there are; nothing where there is no log. The deaths that
-- its turns have made good for stay so (`progress`).
local function forget_log(job, logged)
  if not logged then return end
  local fields = {'logged', 'saved', 'saved_in'}
  for place = 0, (tonumber(logged) or 0) - 1 do fields[#fields + 1] = 'log:' .. place end
  remove_all('HDEL', job, fields)
end
