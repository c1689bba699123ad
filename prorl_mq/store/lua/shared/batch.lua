-- Lets a batch go `ttl_ms` from now if no group is among its open ones, `theirs`, and no report is to come. Until then
-- it has no TTL: it may wait for weeks.
local function let_go(B, theirs)
  local f = call('HMGET', B, 'phase', 'cursor')
  if (not f[1] or f[2]) and call('EXISTS', theirs) == 0 then call('PEXPIRE', B, A.ttl_ms) end
end
