#!lua flags=allow-oom
-- Queue dead letters again, as `rq requeue` does. ARGV: run, then unit numbers. Returns how many were queued.
-- They stay counted as dead until a consumer claims them. Units whose job is gone become `missing`.
local run, n = ARGV[1], 0
for i = 2, #ARGV do
  local unit = ARGV[i]
  local id = run .. '-' .. unit
  if call('HEXISTS', rk(run, 'dead'), unit) == 1 then
    if call('HEXISTS', job_key(id), 'data') == 1 then
      if call('ZREM', FAILED, id) == 1 then
        call('HSET', job_key(id), 'status', 'queued')
        call('RPUSH', QUEUE, id)
        n = n + 1
      end
    elseif cjson.decode(call('HGET', rk(run, 'dead'), unit)).reason ~= 'invalid_line' then
      local letter = cjson.decode(call('HGET', rk(run, 'dead'), unit))
      call('HDEL', rk(run, 'dead'), unit)
      call('SETBIT', rk(run, 'done'), unit, 0)
      call('SADD', rk(run, 'missing'), unit)
      add(run, 'dead', -1); add(run, 'queued', 1); add(run, 'dead:' .. letter.reason, -1)
      n = n + 1
    end
  end
end
flush()
if n > 0 then call('SADD', 'pm:active', run) end
return n
