#!lua flags=allow-oom
-- Put jobs that were found in no list back at the head of the queue, if nothing has happened to them since.
-- ARGV: run, then unit numbers. Returns how many were put back. A second list entry for a job does no harm.
local run, back = ARGV[1], 0
if call('EXISTS', rk(run, 'settings')) == 0 then return 0 end
local now = now_s()
for i = 2, #ARGV do
  local unit = ARGV[i]
  local id = run .. '-' .. unit
  local key = job_key(id)
  if call('GETBIT', rk(run, 'done'), unit) == 0 then
    local job = call('HMGET', key, 'owner', 'data')
    if not job[2] then
      if call('SADD', rk(run, 'missing'), unit) == 1 and job[1] and job[1] ~= '' then
        add(run, 'in_flight', -1); add(run, 'queued', 1)
      end
    else
      local live = false
      if job[1] and job[1] ~= '' then
        local beat = call('ZSCORE', STARTED, id .. ':' .. job[1])
        live = beat and tonumber(beat) > now
      end
      if not live then
        if job[1] and job[1] ~= '' then
          add(run, 'in_flight', -1); add(run, 'queued', 1)
          call('HINCRBY', key, 'deaths', 1)
        end
        call('HSET', key, 'status', 'queued', 'owner', '')
        call('ZREM', FAILED, id)
        call('PERSIST', key)
        -- Where a stock worker left it that ended between taking and starting it: RQ would fail it there in a minute.
        call('LREM', QUEUE .. ':intermediate', 0, id)
        call('LPUSH', QUEUE, id)
        add(run, 'restored', 1)
        back = back + 1
      end
    end
  end
end
flush()
return back
