#!lua
-- Adds a backend to a pool, or changes its description and ends its drain.
-- KEYS: 1 heap, 2 backends' descriptions, 3 pools   ARGV: 1 packed {pool, address, limit}, 2 its description; limit 0: none
-- Reply: joined or known
--@include call
call('HSET', KEYS[2], A.address, ARGV[2])
call('HDEL', KEYS[2], A.address .. '|out', A.address .. '|limit')
if A.limit > 0 then call('HSET', KEYS[2], A.address .. '|limit', A.limit) end
call('SADD', KEYS[3], A.pool)
if call('ZSCORE', KEYS[1], A.address) then return 'known' end
call('ZADD', KEYS[1], 0, A.address)
return 'joined'
