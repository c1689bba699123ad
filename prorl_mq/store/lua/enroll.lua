#!lua flags=allow-oom
-- A worker that starts announces what it can run and, where its node has a lane, the node. It may start while memory
-- is full, since what is in play ends only with workers.
-- KEYS: 1 schemas, 2 lanes   ARGV: 1 packed {node, items = {{source, schema}}}, then bytes
-- Reply: enrolled
--@include call
for _, item in ipairs(A.items) do call('HSET', KEYS[1], item[1], raw(item[2])) end
if A.node ~= '' then call('SADD', KEYS[2], A.node) end
return 'enrolled'
