#!lua flags=allow-oom
-- Opens the next epoch on a server that is not the last one's: a restarted one, which may have lost its last second, or
-- a promoted replica. Compares and sets, so that it opens once whoever calls.
-- KEYS: 1 epoch   ARGV: 1 packed {}
-- Reply: the number of the epoch that is open now
local server = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
if redis.call('HGET', KEYS[1], 'server') == server then return tonumber(redis.call('HGET', KEYS[1], 'number')) end
local clock, time = redis.call('TIME'), redis.call('HMGET', KEYS[1], 'offset_ms', 'floor_ms')
local opened_ms = math.max(tonumber(time[2] or 0),
  tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + tonumber(time[1] or 0))
redis.call('HSET', KEYS[1], 'server', server, 'tokens', 0, 'opened_ms', string.format('%.0f', opened_ms))
return redis.call('HINCRBY', KEYS[1], 'number', 1)
