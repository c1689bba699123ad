#!lua flags=allow-oom
-- Gives a namespace without jobs in flight to releases of another protocol, and admission back. No epoch is open then:
-- each process asks for the next one (`open_epoch`), where one of another protocol than this is refused from now on.
-- KEYS: 1 epoch, 2 jobs in flight, 3 duty to admit   ARGV: 1 name of the duty's holder, 2 protocol that it saw, 3 the new one
-- Reply: switched, already, moved when the protocol is not as the caller saw it, not held, or in flight
local about = redis.call('HMGET', KEYS[1], 'protocol', 'chosen')
if about[1] == ARGV[3] and about[2] == ARGV[3] then return 'already' end
if (about[1] or '1') ~= ARGV[2] then return 'moved' end
if string.match(redis.call('GET', KEYS[3]) or '', '^[^\t]*') ~= ARGV[1] then return 'not held' end
if redis.call('EXISTS', KEYS[2]) == 1 then return 'in flight' end
redis.call('HSET', KEYS[1], 'protocol', ARGV[3], 'chosen', ARGV[3], 'server', '')
redis.call('UNLINK', KEYS[3])
return 'switched'
