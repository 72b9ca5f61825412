#!lua
-- Give back to a run jobs that somebody deleted from Redis. ARGV: run, time (ISO), job timeout, then per job:
-- unit, description, data. They are counted as queued already. Returns how many were put back.
local run, back, i = ARGV[1], 0, 4
while i <= #ARGV do
  local unit = ARGV[i]
  if call('SREM', rk(run, 'missing'), unit) == 1 and call('GETBIT', rk(run, 'done'), unit) == 0 then
    local id = run .. '-' .. unit
    make_job(id, ARGV[i + 1], ARGV[2], ARGV[3], ARGV[i + 2])
    call('LPUSH', QUEUE, id)
    back = back + 1
  end
  i = i + 3
end
return back
