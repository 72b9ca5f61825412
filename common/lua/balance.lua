#!lua flags=allow-oom
-- Compare the counters of all active runs with the lists. O(runs). ARGV: none.
-- Returns {seconds since they first disagreed or -1, queued by counters, queued by lists, in flight by counters,
-- in flight by the registry}. A disagreement that lasts means a job fell out of every list.
local queued, flying, held = 0, 0, 0
for _, run in ipairs(call('SMEMBERS', 'pm:active')) do
  local c = call('HMGET', rk(run, 'counts'), 'queued', 'in_flight')
  queued = queued + (tonumber(c[1]) or 0) - call('SCARD', rk(run, 'missing'))
  flying = flying + (tonumber(c[2]) or 0)
  held = held + call('LLEN', rk(run, 'held'))
end
local listed = held + call('LLEN', QUEUE) + call('ZCARD', SCHEDULED)
local started = call('ZCARD', STARTED)
local now = now_s()
if listed == queued and started == flying then
  call('DEL', 'pm:unbalanced')
  return {-1, queued, listed, flying, started}
end
local since = tonumber(call('GET', 'pm:unbalanced') or '')
if not since or since > now then
  since = now
  call('SET', 'pm:unbalanced', string.format('%.3f', now), 'EX', 3600)
end
return {math.floor(now - since), queued, listed, flying, started}
