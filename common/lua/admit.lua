#!lua
-- Admit one chunk of the input: jobs, dead letters of invalid lines and the new position, all or nothing.
-- ARGV: run, chunk token, expected index, new index, new line, new offset, ended (0/1), time (ISO), job timeout,
--       number of jobs, number of dead, then per job: unit, description, data; per dead: unit, letter, reason.
-- Returns 1 admitted, 2 was admitted already by this very call, 0 the position is elsewhere, -1 no such run.
-- Refused by Redis as a whole when memory is full: it has no allow-oom flag.
local run = ARGV[1]
local position = rk(run, 'position')
local at = call('HMGET', position, 'index', 'chunk')
if not at[1] then return -1 end
if at[2] == ARGV[2] then return 2 end
if at[1] ~= ARGV[3] then return 0 end
local done, now, timeout = rk(run, 'done'), ARGV[8], ARGV[9]
local jobs, letters = tonumber(ARGV[10]), tonumber(ARGV[11])
local i, ids, n = 12, {}, 0
for _ = 1, jobs do
  local unit = ARGV[i]
  -- A set bit means that a part read back from the output has this unit already.
  if call('GETBIT', done, unit) == 0 then
    local id = run .. '-' .. unit
    make_job(id, ARGV[i + 1], now, timeout, ARGV[i + 2])
    n = n + 1
    ids[n] = id
  end
  i = i + 3
end
for first = 1, n, 4000 do
  call('RPUSH', QUEUE, unpack(ids, first, math.min(first + 3999, n)))
end
add(run, 'accepted', n)
add(run, 'queued', n)
for _ = 1, letters do
  local unit = ARGV[i]
  if call('SETBIT', done, unit, 1) == 0 then
    call('HSET', rk(run, 'dead'), unit, ARGV[i + 1])
    add(run, 'accepted', 1)
    add(run, 'dead', 1)
    add(run, 'dead:' .. ARGV[i + 2], 1)
  end
  i = i + 3
end
call('HSET', position, 'index', ARGV[4], 'line', ARGV[5], 'offset', ARGV[6], 'ended', ARGV[7], 'chunk', ARGV[2])
flush()
return 1
