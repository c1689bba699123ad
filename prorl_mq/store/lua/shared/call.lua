-- The packed argument, the time, and the events of one call. Every script starts with this part.
local A = cmsgpack.unpack(ARGV[1])
local call = redis.call
local clock = call('TIME')
local now_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local now_ms = math.floor(now_us / 1000)
local now_text = string.format('%.0f', now_ms)
local events = {}

-- Bytes travel outside of the packed argument, which holds text only: an item has their place in ARGV, or 0.
local function raw(place)
  return place > 0 and ARGV[place] or ''
end

-- Writes a state change down: a line of tab-separated ms, event, stage, token, worker, detail. Answers the job's time
-- line with it, cut to its newest 64 events. It is published with the other events of this call.
local function note(line, ref, event, stage, token, worker, detail)
  local text = now_text .. '\t' .. event .. '\t' .. (stage or '') .. '\t' .. (token or '') .. '\t' .. (worker or '')
    .. '\t' .. (detail or '') .. '\n'
  events[#events + 1] = ref .. '\t' .. text
  line = (line or '') .. text
  if #line > 2048 then
    local _, count = string.gsub(line, '\n', '')
    for _ = 65, count do line = string.sub(line, string.find(line, '\n', 1, true) + 1) end
  end
  return line
end

-- One stream entry for the whole call: a line an event, each led by its job.
local function publish(key)
  if #events == 0 then return end
  call('XADD', key, 'MAXLEN', '~', A.events_cap, '*', 'e', table.concat(events))
end

-- A token only grows, even when a crash took the last second of writes.
local function next_token(previous)
  return string.format('%.0f', math.max((tonumber(previous) or 0) + 1, now_us))
end

-- Removes members with as few commands as they fit in.
local function remove_all(command, key, list)
  for at = 1, #list, 1000 do
    call(command, key, unpack(list, at, math.min(at + 999, #list)))
  end
end
