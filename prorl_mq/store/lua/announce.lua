#!lua flags=allow-oom
-- Records the policy version that a pool serves from now on, and when; what backends reported of the last one goes.
-- KEYS: 1 policy, 2 update   ARGV: 1 packed {version, mode, weights, history}; history: how many announcements are kept
-- Reply: announced, or already
--@include call
local f = call('HMGET', KEYS[1], 'version', 'mode', 'weights', 'history')
if f[1] == A.version and f[2] == A.mode and f[3] == A.weights then return 'already' end
local lines = f[4] or ''
if f[1] ~= A.version then
  lines = lines .. now_text .. ' ' .. A.version .. '\n'
  local _, count = string.gsub(lines, '\n', '')
  for _ = A.history + 1, count do lines = string.sub(lines, string.find(lines, '\n', 1, true) + 1) end
end
call('HSET', KEYS[1], 'version', A.version, 'mode', A.mode, 'weights', A.weights, 'history', lines,
  'id', next_token())
call('UNLINK', KEYS[2])
return 'announced'
