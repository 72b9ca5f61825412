#!lua flags=allow-oom
-- Put abandoned jobs back at the head of the queue: claims whose heartbeat has ended.
-- ARGV: claim TTL (s), most to look at. Returns how many were put back.
--
-- It is called every few seconds. After a gap (Redis was down, everything was stopped) or a jump of the clock,
-- silence proves nothing: every claim then gets one whole TTL from now before it counts as abandoned.
local ttl, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = now_s()
local last = tonumber(call('GET', 'pm:reaped') or '')
call('SET', 'pm:reaped', string.format('%.3f', now))
if not last or now - last > ttl / 2 or last - now > 1 then
  local grace = call('ZRANGE', STARTED, 0, -1)
  for _, member in ipairs(grace) do call('ZADD', STARTED, 'XX', now + ttl, member) end
  if last and last - now > 1 then
    -- The clock went back: retries that were due soon must not wait until it is there again.
    for _, id in ipairs(call('ZRANGE', SCHEDULED, 0, -1)) do call('ZINCRBY', SCHEDULED, now - last, id) end
  end
  return 0
end
local back, gone = 0, {}
for _, member in ipairs(call('ZRANGEBYSCORE', STARTED, '-inf', now, 'LIMIT', 0, most)) do
  local id, execution = string.match(member, '^(.+):([^:]+)$')
  local run, unit
  if id then run, unit = parse(id) end
  if run and call('EXISTS', rk(run, 'settings')) == 1 then
    gone[#gone + 1] = member
    local key = job_key(id)
    if call('HGET', key, 'owner') == execution and call('GETBIT', rk(run, 'done'), unit) == 0 then
      call('HSET', key, 'status', 'queued', 'owner', '')
      call('HINCRBY', key, 'deaths', 1)
      call('LPUSH', QUEUE, id)
      add(run, 'in_flight', -1); add(run, 'queued', 1); add(run, 'redeliveries', 1)
      back = back + 1
    end
  elseif id then
    -- Not ours: left for RQ's own clean-up.
  else
    gone[#gone + 1] = member
  end
end
if #gone > 0 then call('ZREM', STARTED, unpack(gone)) end
flush()
return back
