#!lua flags=allow-oom
-- Ends a run in this cell, if nothing of it is in flight: from now on no script writes to it (`call.lua`), and nothing
-- that the duties look through names it. What it held of shared keys is kept for the cell that it moves to. Its keys stay,
-- until `vacate`; those that its trainer writes without a script are put out of the trainer's reach.
-- KEYS: 1 away, 2 run, 3 runs, 4 settings, 5 un-acknowledged groups, 6 jobs in flight, 7 due, 8 intake, 9 names to cancel,
--       10 names that may be cancelled, 11 results, 12 departed, 13 answers, 14 DAPO batches, 15 carrying, 16 paused runs,
--       17 groups that wait for the archive, 18 bell, 19 bell of the draw, 20 intakes, 21 intakes of the tenant
-- ARGV: 1 packed {run, name, cell, prefix, due_after, most}; due_after: the caller has seen that nothing of the run is due up to
--       that entry
-- Reply: left and its id; busy with what waits: jobs, verdicts, messages, cancels, archive; gone: there is no such run
--@include call
local known = call('HMGET', KEYS[1], 'way', 'cell', 'id')
if known[1] == 'left' then return {'left', known[3], known[2]} end
if known[1] == 'arriving' or call('EXISTS', KEYS[2]) == 0 then return {'gone'} end
local theirs = A.run .. ':'
local function of_run(name)
  return name == A.run or string.sub(name, 1, #theirs) == theirs
end
local fresh, due = call('XRANGE', KEYS[7], '(' .. A.due_after, '+', 'COUNT', A.most), 0
for _, entry in ipairs(fresh) do
  if of_run(entry[2][2]) then due = due + 1 end
end
if #fresh == A.most then due = due + 1 end  -- more than are looked through here
local cancels = 0
for _, name in ipairs(call('SMEMBERS', KEYS[9])) do
  if of_run(name) then cancels = cancels + 1 end
end
local jobs, messages = tonumber(call('HGET', KEYS[6], A.run) or 0), call('XLEN', KEYS[8])
local archived = call('XLEN', KEYS[17])
if jobs + due + messages + cancels + archived > 0 then return {'busy', jobs, due, messages, cancels, archived} end
local facts = {seen = call('ZSCORE', KEYS[3], A.run), settings = call('HGET', KEYS[4], A.run),
  unacked = call('HGET', KEYS[5], A.run), carrying = call('ZSCORE', KEYS[15], A.run),
  paused = call('ZSCORE', KEYS[16], A.run), cancellable = call('SMEMBERS', KEYS[10]),
  answers = call('ZRANGE', KEYS[13], 0, -1, 'WITHSCORES'), dapo = {}}
local listed = call('ZRANGE', KEYS[14], 0, -1, 'WITHSCORES')
for at = 1, #listed, 2 do
  if of_run(listed[at]) then
    facts.dapo[#facts.dapo + 1], facts.dapo[#facts.dapo + 2] = listed[at], listed[at + 1]
    call('ZREM', KEYS[14], listed[at])
    call('ZREM', KEYS[19], listed[at])
  end
end
local id = A.prefix .. next_token()  -- two namespaces of one server give the same tokens
call('DEL', KEYS[1])
call('HSET', KEYS[1], 'way', 'left', 'cell', A.cell, 'id', id, 'facts', cmsgpack.pack(facts))
if call('EXISTS', KEYS[11]) == 1 then call('RENAME', KEYS[11], KEYS[12]) end
call('UNLINK', KEYS[8], KEYS[10], KEYS[13])
for _, key in ipairs({KEYS[3], KEYS[15], KEYS[16], KEYS[18]}) do call('ZREM', key, A.run) end
for _, key in ipairs({KEYS[4], KEYS[5]}) do call('HDEL', key, A.run) end
if call('SREM', KEYS[20], A.run) == 1 then call('HSET', KEYS[1], 'intake', 1) end
call('SREM', KEYS[21], A.name)
return {'left', id, A.cell}
