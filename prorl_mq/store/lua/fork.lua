#!lua
-- Stores a group whose jobs begin with turns of another job, their parent, as the only one of its batch, and puts it
-- into its run's backlog. Idempotent by the name of the batch, which is the group's.
-- KEYS: 1 batch, 2 backlog, 3 runs, 4 run, 5 bell, 6 open groups of the run, 7 batches of the run, 8 open groups of the
--       batch, 9 group, 10 open, 11 sealed, 12 fork, 13 open of the parent's group, 14 its sealed, 15 job,
--       16 what names the checkpoint's file: that job, the parent, or the fork that it begins with
-- ARGV: 1 packed {digest, run, batch, ref, n, total_ms, family, base, ahead_us, batches_cap, open, sealed, turns, saved,
--       saved_in, copies, lends, images}, then bytes. `copies`: the sealed part is that of the parent's group, which is open;
--       `lends`: the file is the parent's, whose worker must not remove it from now on
-- Reply: forked, already, conflict (the name is another's), or moved (look again: the parent's group has closed, or its
-- checkpoint is in another file)
--@include call
local B = KEYS[1]
local digest = call('HGET', B, 'digest')
if digest then return digest == A.digest and 'already' or 'conflict' end
if call('EXISTS', KEYS[9]) == 1 then return 'conflict' end
if A.copies and call('EXISTS', KEYS[13]) == 0 then return 'moved' end
if A.saved_in ~= '' and call('HGET', KEYS[16], 'saved_in') ~= A.saved_in then return 'moved' end
local sealed = A.copies and call('GET', KEYS[14]) or raw(A.sealed)
call('HSET', B, 'digest', A.digest, 'groups', 1, 'jobs', A.n, 'closed', 0, 'at', now_ms)
call('ZADD', KEYS[7], now_ms, A.batch)
call('ZREMRANGEBYRANK', KEYS[7], 0, -1 - A.batches_cap)
call('HSET', KEYS[9], 'digest', A.digest, 'batch', A.batch, 'n', A.n, 'wanted', A.n, 'next', 0, 'open', 0, 'refills', 0,
  'total_ms', A.total_ms, 'family', A.family, 'at', now_ms)
if A.base ~= 0 then call('HSET', KEYS[9], 'base', string.format('%.0f', A.base)) end
if A.images ~= '' then call('HSET', KEYS[9], 'images', A.images) end
call('SET', KEYS[10], raw(A.open))
if sealed ~= '' then call('SET', KEYS[11], sealed) end
call('HSET', KEYS[12], 'turns', raw(A.turns), 'saved', raw(A.saved), 'saved_in', A.saved_in)
if A.lends then call('HSET', KEYS[15], 'lent', 1) end
call('ZADD', KEYS[2], string.format('%.0f', A.base + now_us - A.ahead_us), A.ref)
call('SADD', KEYS[6], A.ref)
call('SADD', KEYS[8], A.ref)
call('ZADD', KEYS[3], now_ms, A.run)
call('HSET', KEYS[4], 'seen', now_ms)
call('PERSIST', KEYS[4])
call('ZADD', KEYS[5], 0, A.run)
return 'forked'
