#!lua flags=allow-oom
-- Set a run's counters of open jobs by what is in the lists. ARGV: run.
-- A job that somebody deleted while it was worked on leaves no trace of which counter it stood in.
-- Returns how many jobs moved from one counter to the other.
local run, flying = ARGV[1], 0
for _, member in ipairs(call('ZRANGE', STARTED, 0, -1)) do
  local id, execution = string.match(member, '^(.+):([^:]+)$')
  local of, unit
  if id then of, unit = parse(id) end
  if of == run and call('HGET', job_key(id), 'owner') == execution and call('GETBIT', rk(run, 'done'), unit) == 0 then
    flying = flying + 1
  end
end
local c = call('HMGET', rk(run, 'counts'), 'accepted', 'completed', 'dead', 'in_flight')
if not c[1] then return 0 end
local open = c[1] - c[2] - c[3]
call('HSET', rk(run, 'counts'), 'queued', open - flying, 'in_flight', flying)
return math.abs(flying - c[4])
