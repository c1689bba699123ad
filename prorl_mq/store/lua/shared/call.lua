-- The packed argument, the epoch, the service's time, and the events of one call. Every script starts with this part.
-- The epoch's key comes before the keys that a script names. On another server than the epoch's, a restarted or a
-- promoted one, nobody writes before the next epoch is open (`open_epoch`); nor does a caller that knows another epoch.
local A = cmsgpack.unpack(ARGV[1])
local call = redis.call
local epoch_key = table.remove(KEYS, 1)
local server = string.match(call('INFO', 'replication'), 'master_replid:(%x+)')
local epoch = call('HMGET', epoch_key, 'number', 'server', 'offset_ms', 'floor_ms')
if epoch[2] ~= server then return redis.error_reply('EPOCH no epoch is open on this server') end
local epoch_text = epoch[1] .. '-' .. string.sub(server, 1, 8)
if A.epoch and A.epoch ~= epoch_text then return redis.error_reply('EPOCH another epoch is open on this server') end
-- A run that is in another cell, or on its way, is written to by the scripts of its move alone: the key after the epoch's.
if A.of_run then
  local away_key = table.remove(KEYS, 1)
  local away = call('HMGET', away_key, 'way', 'cell')
  if away[1] then return redis.error_reply('AWAY ' .. away[1] .. ' ' .. away[2]) end
end
local clock = call('TIME')
-- Redis's time with its jumps taken out (`shift_clock`). From a step back to its notice the service's time stands still.
local clock_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2]) + 1000 * tonumber(epoch[3] or 0)
local now_us = math.max(clock_us, 1000 * tonumber(epoch[4] or 0))
local now_ms = math.floor(now_us / 1000)
local now_text = string.format('%.0f', now_ms)
local events = {}

-- Bytes travel outside of the packed argument, which holds text only: an item has their place in ARGV, or 0.
local function raw(place)
  return place > 0 and ARGV[place] or ''
end

-- Writes a state change down: a line of tab-separated ms, event, stage, token, worker, detail. Answers the job's time
-- line with it, cut to its newest 64 events. It is published with the other events of this call. `at`: where it was
-- earlier than now.
local function note(line, ref, event, stage, token, worker, detail, at)
  local ms = at and string.format('%.0f', at) or now_text
  local text = ms .. '\t' .. event .. '\t' .. (stage or '') .. '\t' .. (token or '') .. '\t' .. (worker or '')
    .. '\t' .. (detail or '') .. '\n'
  events[#events + 1] = ref .. '\t' .. text
  line = (line or '') .. text
  if #line > 2048 then
    local _, count = string.gsub(line, '\n', '')
    for _ = 65, count do line = string.sub(line, string.find(line, '\n', 1, true) + 1) end
  end
  return line
end

-- Adds a field to a stream, cut to about `cap` entries where that is given, with a second one, `f`, where there are
-- `facts`, and a third, `s`, where there is a `spec`. Ids lie above those of every earlier epoch, and above the stream's
-- newest where the clock is behind that: a reader's cursor never passes an entry.
local EPOCH_MS = 2199023255552  -- 2^41: above the milliseconds of this century
local now_id = string.format('%.0f-*', tonumber(epoch[1]) * EPOCH_MS + now_ms)

local function try(id, stream, field, value, cap, facts, spec)
  if spec then return redis.pcall('XADD', stream, id, field, value, 'f', facts, 's', spec) end
  if facts then return redis.pcall('XADD', stream, id, field, value, 'f', facts) end
  if cap then return redis.pcall('XADD', stream, 'MAXLEN', '~', cap, id, field, value) end
  return redis.pcall('XADD', stream, id, field, value)
end

local function add(stream, field, value, cap, facts, spec)
  local id = try(now_id, stream, field, value, cap, facts, spec)
  if type(id) == 'table' and string.find(id.err, 'equal or smaller', 1, true) then
    local about = call('XINFO', 'STREAM', stream)
    for at = 1, #about, 2 do
      if about[at] == 'last-generated-id' then
        id = try(string.match(about[at + 1], '^%d+') .. '-*', stream, field, value, cap, facts, spec)
      end
    end
  end
  if type(id) == 'table' then error(id) end
  return id
end

-- Whether a key takes stream entries, so that a script asks before it changes anything: a trainer may have made another
-- kind of key of its own stream.
local function takes_entries(key)
  local kind = call('TYPE', key).ok
  return kind == 'stream' or kind == 'none'
end

-- One stream entry for the whole call: a line an event, each led by its job.
local function publish(key)
  if #events > 0 then add(key, 'e', table.concat(events), A.events_cap) end
end

-- A token is never given twice: the epoch's number and server, and a count within the epoch. A call takes one for each
-- of its items, or `A.tokens`, at once; a token that it does not need is never used.
local given, taken = 0, 0
local function next_token()
  if given == taken then
    local count = A.tokens or A.items and #A.items or 1
    taken = call('HINCRBY', epoch_key, 'tokens', count)
    given = taken - count
  end
  given = given + 1
  return string.format('%s.%.0f', epoch_text, given)
end

-- Removes members with as few commands as they fit in.
local function remove_all(command, key, list)
  for at = 1, #list, 1000 do
    call(command, key, unpack(list, at, math.min(at + 999, #list)))
  end
end
