#!lua flags=allow-oom
-- Queue dead letters again, with a clean record of attempts. ARGV: run, then unit numbers.
-- Returns how many were queued. Units whose job is gone become `missing`: the producer makes their jobs again.
-- Lines that cannot be used stay dead, and so does what `rq requeue` has queued already: a claim revives that.
local run, n = ARGV[1], 0
for i = 2, #ARGV do
  local unit = ARGV[i]
  local id = run .. '-' .. unit
  local key = job_key(id)
  local letter = call('HGET', rk(run, 'dead'), unit)
  local reason = letter and cjson.decode(letter).reason
  local whole = call('HEXISTS', key, 'data') == 1
  if letter and reason ~= 'invalid_line' and (not whole or call('ZREM', FAILED, id) == 1) then
    call('HDEL', rk(run, 'dead'), unit)
    call('SETBIT', rk(run, 'done'), unit, 0)
    add(run, 'dead', -1); add(run, 'queued', 1); add(run, 'dead:' .. reason, -1); add(run, 'revived', 1)
    if whole then
      call('HSET', key, 'status', 'queued', 'owner', '', 'attempts', 0, 'tries', 0, 'deaths', 0)
      call('PERSIST', key)
      call('RPUSH', QUEUE, id)
    else
      call('SADD', rk(run, 'missing'), unit)
    end
    n = n + 1
  end
end
flush()
if n > 0 then call('SADD', 'pm:active', run) end
return n
