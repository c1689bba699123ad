#!lua flags=allow-oom
-- A worker announces what it can run, under the digest that its heartbeats name, and, where its node has a lane, the
-- node: with its lanes' streams, since a stream without a lane would have no owner. It may start while memory is full,
-- since what is in play ends only with workers.
-- KEYS: 1 schemas, 2 lanes, 3 families, then its lanes' streams
-- ARGV: 1 packed {consumers, node, digest, families, items = {{source, schema}}}, then bytes; families: packed, as its
--       place
-- Reply: enrolled
--@include call
for _, item in ipairs(A.items) do call('HSET', KEYS[1], item[1], raw(item[2])) end
if A.families > 0 then call('HSET', KEYS[3], A.digest, raw(A.families)) end
if A.node ~= '' then
  call('SADD', KEYS[2], A.node)
  for key = 4, #KEYS do redis.pcall('XGROUP', 'CREATE', KEYS[key], A.consumers, '0', 'MKSTREAM') end
end
return 'enrolled'
