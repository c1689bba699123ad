#!lua
-- Notes which cell of several services holds a run, unless another one is noted than the caller expects.
-- KEYS: 1 placed   ARGV: 1 packed {cell, was, ttl_ms}; was: the cell that is replaced, or empty
-- Reply: the cell that is noted then
--@include call
local noted = call('GET', KEYS[1])
if noted and noted ~= A.was then
  call('PEXPIRE', KEYS[1], A.ttl_ms)
  return noted
end
call('SET', KEYS[1], A.cell, 'PX', A.ttl_ms)
return A.cell
