#!lua flags=allow-oom
-- Answers what a trainer has asked for and removes that, once: a message of its intake, or a name in its cancels.
-- The run is known from then on, so that its answers are swept though none of its batches was ever taken.
-- KEYS: 1 intake, or names to cancel; 2 results, 3 answers, 4 runs   ARGV: 1 packed {run, trainers, entry} or {run, trainers, name}, 2 the answer
-- Reply: answered, or already: the message or name is gone, and its answer was given
--@include call
--@include publish
if not takes_entries(KEYS[2]) then return redis.error_reply('WRONGTYPE ' .. KEYS[2] .. ' is no stream') end
local removed = A.entry and call('XDEL', KEYS[1], A.entry) or A.name and call('SREM', KEYS[1], A.name)
if removed == 0 then return 'already' end
call('ZADD', KEYS[3], now_ms, add_result(KEYS[2], 'a', ARGV[2]))
call('ZADD', KEYS[4], now_ms, A.run)
return 'answered'
