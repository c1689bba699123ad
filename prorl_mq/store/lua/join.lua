#!lua
-- Adds a backend to a pool, or changes its description and ends its drain. Jobs that still hold it from before count.
-- KEYS: 1 heap, 2 backends' descriptions, 3 pools   ARGV: 1 packed {pool, address, limit}, 2 its description; limit 0: none
-- Reply: joined or known
--@include call
local at = A.address
local known = call('HEXISTS', KEYS[2], at) == 1
if not known or call('HEXISTS', KEYS[2], at .. '|out') == 1 then call('HSET', KEYS[2], at .. '|since', now_text) end
call('HSET', KEYS[2], at, ARGV[2])
call('HDEL', KEYS[2], at .. '|out', at .. '|limit')
if A.limit > 0 then call('HSET', KEYS[2], at .. '|limit', A.limit) end
call('SADD', KEYS[3], A.pool)
call('ZADD', KEYS[1], 'NX', 0, at)
return known and 'known' or 'joined'
