#!lua flags=allow-oom
-- Hands out what a run that has left held of shared keys, without which it is opened nowhere. From now on it may be open in
-- the other cell, so that this one takes it back (`restore`) only when that refuses it.
-- KEYS: 1 away   ARGV: 1 packed {id}; id: of the departure
-- Reply: given and the facts; back: the run is to stay here; gone: it has not left by that departure, or has come back
--@include call
local f = call('HMGET', KEYS[1], 'way', 'id', 'back', 'facts')
if f[1] ~= 'left' or f[2] ~= A.id then return {'gone', ''} end
if f[3] then return {'back', ''} end
call('HSET', KEYS[1], 'given', 1)
return {'given', f[4]}
