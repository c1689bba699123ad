#!lua flags=allow-oom
-- Opens the next epoch on a server that is not the last one's: a restarted one, which may have lost its last second, or
-- a promoted replica. Compares and sets, so that it opens once whoever calls. The opening of an epoch may be lost as
-- well: a number that the caller has seen on another server is not used again, since cursors begin with it.
-- A namespace speaks one protocol: that of its processes while jobs are in flight. One of another is refused.
-- KEYS: 1 epoch, 2 jobs in flight   ARGV: 1 packed {seen, protocol}; seen: the last epoch that the caller knows, as answered here, or ''
-- Reply: the epoch that is open now: its number, '-', and the first letters of its server
local A = cmsgpack.unpack(ARGV[1])
local server = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local mark = string.sub(server, 1, 8)
local about = redis.call('HMGET', KEYS[1], 'server', 'number', 'offset_ms', 'floor_ms', 'protocol')
if about[2] and about[5] ~= A.protocol then
  if redis.call('EXISTS', KEYS[2]) == 1 then return redis.error_reply('PROTOCOL ' .. (about[5] or '1')) end
  redis.call('HSET', KEYS[1], 'protocol', A.protocol)
end
local number = tonumber(about[2] or 0)
local seen_number, seen_mark = string.match(A.seen, '^(%d+)-(%x+)$')
local seen = tonumber(seen_number or 0)
if about[1] == server and (seen < number or seen_mark == mark) then return number .. '-' .. mark end
local clock = redis.call('TIME')
local opened_ms = string.format('%.0f', math.max(tonumber(about[4] or 0),
  tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + tonumber(about[3] or 0)))
number = math.max(number, seen) + 1
redis.call('HSET', KEYS[1], 'server', server, 'number', number, 'tokens', 0, 'opened_ms', opened_ms,
  'floor_ms', opened_ms, 'protocol', A.protocol)
return number .. '-' .. mark
