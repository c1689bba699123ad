#!lua flags=allow-oom
-- Opens the next epoch on a server that is not the last one's: a restarted one, which may have lost its last second, or
-- a promoted replica. Compares and sets, so that it opens once whoever calls. The opening of an epoch may be lost as
-- well: a number that the caller has seen on another server is not used again, since cursors begin with it.
-- Where replicas must have what is written (`acks`), the epoch is not open before they have its opening: the caller waits
-- for them, and comes again with `confirmed`. So no token of it exists that a fail-over could take back.
-- A namespace speaks one protocol: that of its processes while jobs are in flight, or the one that an operator has chosen
-- (`switch`). A process of another is refused.
-- No epoch opens while the namespace's slot of a cluster is moved key by key.
-- KEYS: 1 epoch, 2 jobs in flight   ARGV: 1 packed {seen, protocol, confirmed}
--       seen: the last epoch that the caller knows, as answered here, or ''; confirmed: the one that replicas know of, or ''
-- Reply: {epoch, acks, 'open' | 'opening'}; the epoch is its number, '-', and the first letters of its server
local A = cmsgpack.unpack(ARGV[1])
local replication = redis.call('INFO', 'replication')
if string.find(redis.call('INFO', 'cluster'), 'cluster_enabled:1', 1, true) then
  local slot = redis.call('CLUSTER', 'KEYSLOT', KEYS[1])
  if string.find(redis.call('CLUSTER', 'NODES'), '%[' .. slot .. '%-[<>]%-') then
    return redis.error_reply('TRYAGAIN slot ' .. slot .. ' moves key by key, which splits a namespace: end that '
      .. '(CLUSTER SETSLOT ' .. slot .. ' STABLE), and move it with CLUSTER MIGRATESLOTS (Valkey 9)')
  end
end
local server = string.match(replication, 'master_replid:(%x+)')
local mark = string.sub(server, 1, 8)
local about = redis.call('HMGET', KEYS[1], 'server', 'number', 'offset_ms', 'floor_ms', 'protocol', 'acks',
  'chosen')
if about[2] and about[5] ~= A.protocol then
  if redis.call('EXISTS', KEYS[2]) == 1 then return redis.error_reply('PROTOCOL ' .. (about[5] or '1')) end
  if about[7] and about[7] == about[5] then return redis.error_reply('PROTOCOL ' .. about[5] .. ' chosen') end
  redis.call('HSET', KEYS[1], 'protocol', A.protocol)
end
local number = tonumber(about[2] or 0)
local seen_number, seen_mark = string.match(A.seen, '^(%d+)-(%x+)$')
local seen = tonumber(seen_number or 0)
local acks, opening = tonumber(about[6] or 0), 'opening ' .. server
if (about[1] == server or about[1] == opening) and (seen < number or seen_mark == mark) then
  local open = number .. '-' .. mark
  if about[1] == server then return {open, acks, 'open'} end
  if A.confirmed ~= open then return {open, acks, 'opening'} end
  redis.call('HSET', KEYS[1], 'server', server)
  return {open, acks, 'open'}
end
local clock = redis.call('TIME')
local opened_ms = string.format('%.0f', math.max(tonumber(about[4] or 0),
  tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + tonumber(about[3] or 0)))
number = math.max(number, seen) + 1
redis.call('HSET', KEYS[1], 'server', server, 'number', number, 'tokens', 0, 'opened_ms', opened_ms,
  'floor_ms', opened_ms, 'protocol', A.protocol)
if acks == 0 then return {number .. '-' .. mark, 0, 'open'} end
acks = math.max(1, tonumber(string.match(replication, 'connected_slaves:(%d+)')))
redis.call('HSET', KEYS[1], 'server', opening, 'acks', acks)
return {number .. '-' .. mark, acks, 'opening'}
