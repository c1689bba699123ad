#!lua flags=allow-oom
-- Answers a message of an intake and removes it, once.
-- KEYS: 1 intake, 2 results   ARGV: 1 packed {entry}, 2 the answer
-- Reply: answered, or already: the message is gone, and its answer was given
--@include call
if call('XDEL', KEYS[1], A.entry) == 0 then return 'already' end
add(KEYS[2], 'a', ARGV[2])
return 'answered'
