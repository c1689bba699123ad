#!lua flags=allow-oom
-- Writes down what was seen of a backend: its breaker, unless that has changed since the caller looked, and facts.
-- KEYS: 1 backends' descriptions
-- ARGV: 1 packed {address, was, breaker, restart, facts = {{name, text}}}; restart: its ramp begins again; no text: forget
-- Reply: {'observed'}, {'changed', breaker} when it is neither as it was nor as it should be, or {'gone'}
--@include call
local at = A.address
if call('HEXISTS', KEYS[1], at) == 0 then return {'gone'} end
local breaker = call('HGET', KEYS[1], at .. '|breaker') or ''
if breaker ~= A.was and breaker ~= A.breaker then return {'changed', breaker} end
if A.breaker == '' then
  call('HDEL', KEYS[1], at .. '|breaker')
else
  call('HSET', KEYS[1], at .. '|breaker', A.breaker)
end
if A.restart then call('HSET', KEYS[1], at .. '|since', now_text) end
for _, fact in ipairs(A.facts) do
  if fact[2] == '' then
    call('HDEL', KEYS[1], at .. '|' .. fact[1])
  else
    call('HSET', KEYS[1], at .. '|' .. fact[1], fact[2])
  end
end
return {'observed'}
