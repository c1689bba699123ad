-- The packed argument, the time, and the events of one call. Every script starts with this part.
local A = cmsgpack.unpack(ARGV[1])
local call = redis.call
local clock = call('TIME')
local now_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local now_ms = math.floor(now_us / 1000)
local events = {}

-- Bytes travel outside of the packed argument, which holds text only: an item has their place in ARGV, or 0.
local function raw(place)
  return place > 0 and ARGV[place] or ''
end

-- Keeps a state change with its job: the newest 64 of them. It is published with the others of this call.
local function note(timeline, ref, event, stage, token, worker, detail)
  local packed = cmsgpack.pack({now_ms, ref, event, stage or '', tonumber(token) or 0, worker or '', detail or ''})
  if call('RPUSH', timeline, packed) > 64 then call('LTRIM', timeline, -64, -1) end
  events[#events + 1] = packed
end

-- The first bytes of a MessagePack array.
local function array_head(count)
  if count < 16 then return string.char(0x90 + count) end
  return string.char(0xdc, math.floor(count / 256), count % 256)
end

-- One stream entry for the whole call: a MessagePack array of its events.
local function publish(key)
  if #events == 0 then return end
  call('XADD', key, 'MAXLEN', '~', A.events_cap, '*', 'e', array_head(#events) .. table.concat(events))
end

-- A token only grows, even when a crash took the last second of writes.
local function next_token(previous)
  return string.format('%.0f', math.max((tonumber(previous) or 0) + 1, now_us))
end

-- Collects members, to remove them with one command.
local function remove_all(command, key, ...)
  local members = {...}
  local list = table.remove(members)
  if #list == 0 then return end
  for at = 1, #list, 1000 do
    call(command, key, unpack(list, at, math.min(at + 999, #list)))
  end
end
