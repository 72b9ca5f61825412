#!lua flags=allow-oom
-- End many claims of one consumer in one step, each in one of four ways.
-- ARGV: worker, server, time (ISO), window length, number of items, then per item:
--   id, execution, 'ok',      record line, verdict, output tokens, prompt id
--   id, execution, 'dead',    letter JSON, reason, RQ result payload, verdict or '', prompt id
--   id, execution, 'retry',   delay (s), attempts, tries, verdict or '', prompt id
--   id, execution, 'release', 1 when this counts as a death of its server, else 0
-- and after the items id, execution of those that a heartbeat may have made visible to RQ's tools.
-- Returns one number per item: 1 done, 0 came too late (somebody else's result stands, or the claim is gone),
-- then per run that got completions: the run, its window's tally as a flat list.
-- Sending the same items again is harmless.
local worker, server, iso, window = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local items = tonumber(ARGV[5])
local WIDTH = {ok = 7, dead = 8, retry = 8, release = 4} -- arguments of an item
local now = now_s()
local i = 6
local expiry = string.format('%.6f', now + FINISHED_TTL)
local replies, verdicts, known, removed, finished, bits = {}, {}, {}, {}, {}, {}

local function active(run)
  if known[run] == nil then
    known[run] = call('EXISTS', rk(run, 'settings')) == 1 and admitted(run) or false
    -- Fails now, before a bit is set, if what stands there is no stream.
    call('XLEN', rk(run, 'results'))
  end
  return known[run]
end

local function drop_claim(id, execution)
  removed[#removed + 1] = id .. ':' .. execution
end

-- A field of a job; none where somebody put a value of another type in the job's place. Nothing here may fail
-- half way: a unit that is terminal must have its completion.
local function field(key, name)
  local value = redis.pcall('HGET', key, name)
  if type(value) ~= 'table' then return value end
  call('DEL', key)
  return false
end

-- The unit leaves whichever counter its job stands in.
local function uncount(run, owner)
  if owner and owner ~= '' then add(run, 'in_flight', -1) else add(run, 'queued', -1) end
end

-- The guard's window has every completion as it was judged, also those that are made again or rejected.
local function judged(run, verdict, name)
  if verdict == '' then return end
  local list = verdicts[run]
  if not list then list = {}; verdicts[run] = list end
  list[#list + 1] = verdict .. ' ' .. server .. ' ' .. name
end

-- The units of all completions become terminal by one command a run, before anything else is changed.
local function set_bits()
  local units, at, j = {}, {}, i
  for n = 1, items do
    local kind = ARGV[j + 2]
    if kind == 'ok' then
      local run, unit, digits = parse(ARGV[j])
      local limit = run and active(run)
      if limit and unit < limit then
        if not units[run] then units[run], at[run] = {}, {} end
        local list = units[run]
        list[#list + 1] = digits
        at[run][#list] = n
      end
    end
    j = j + WIDTH[kind]
  end
  for run, list in pairs(units) do
    local places = at[run]
    for n, bit in ipairs(done_bits(run, list, 'SET')) do bits[places[n]] = {run, bit} end
  end
end

local function complete(id, execution, found, line, verdict, tokens, name)
  drop_claim(id, execution)
  if not found then return 0 end
  local run, key = found[1], job_key(id)
  if found[2] == 1 then
    if field(key, 'by') == execution then return 1 end -- this very call, sent again
    add(run, 'second_finishes', 1)
    return 0
  end
  local owner = field(key, 'owner')
  call('XADD', rk(run, 'results'), '*', 'r', line)
  add(run, 'waiting_bytes', #line)
  uncount(run, owner)
  -- Somebody deleted the job while it was worked on.
  if not owner then call('SREM', rk(run, 'missing'), (select(3, parse(id)))) end
  add(run, 'completed', 1)
  add(run, 'output_tokens', tonumber(tokens))
  call('HSET', key, 'status', 'finished', 'ended_at', iso, 'data', SPENT_DATA, 'owner', '', 'by', execution)
  call('EXPIRE', key, FINISHED_TTL)
  finished[#finished + 1] = expiry
  finished[#finished + 1] = id
  add(run, 'verdict:' .. verdict, 1)
  judged(run, verdict, name)
  return 1
end

local function owned(id, execution)
  local run, unit = parse(id)
  if not run or not active(run) then return nil end
  if field(job_key(id), 'owner') ~= execution then return nil end
  return run, unit
end

local function bury(id, execution, letter, reason, result, verdict, name)
  local run, unit = owned(id, execution)
  drop_claim(id, execution)
  if not run or call('SETBIT', rk(run, 'done'), unit, 1) == 1 then return 0 end
  call('HSET', rk(run, 'dead'), unit, letter)
  add(run, 'in_flight', -1); add(run, 'dead', 1); add(run, 'dead:' .. reason, 1)
  call('HSET', job_key(id), 'status', 'failed', 'ended_at', iso, 'owner', '')
  call('EXPIRE', job_key(id), FAILED_TTL)
  call('ZADD', FAILED, now + FAILED_TTL, id)
  call('XADD', 'rq:results:' .. id, 'MAXLEN', '~', 10, '*', 'type', 2, 'created_at', math.floor(now),
    'exc_string', result, 'worker_name', worker)
  call('EXPIRE', 'rq:results:' .. id, FAILED_TTL)
  judged(run, verdict, name)
  return 1
end

local function retry(id, execution, delay, attempts, tries, verdict, name)
  local run = owned(id, execution)
  drop_claim(id, execution)
  if not run then return 0 end
  call('HSET', job_key(id), 'status', 'scheduled', 'owner', '', 'attempts', attempts, 'tries', tries)
  call('ZADD', SCHEDULED, now + tonumber(delay), id)
  add(run, 'in_flight', -1); add(run, 'queued', 1); add(run, 'retries', 1)
  judged(run, verdict, name)
  return 1
end

local function release(id, execution, death)
  local run = owned(id, execution)
  drop_claim(id, execution)
  if not run then return 0 end
  call('HSET', job_key(id), 'status', 'queued', 'owner', '')
  if death == '1' then call('HINCRBY', job_key(id), 'deaths', 1) end
  call('LPUSH', QUEUE, id)
  add(run, 'in_flight', -1); add(run, 'queued', 1); add(run, 'handed_back', 1)
  return 1
end

set_bits()
for n = 1, items do
  local id, execution, kind = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if kind == 'ok' then
    replies[n] = complete(id, execution, bits[n], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5], ARGV[i + 6])
  elseif kind == 'dead' then
    replies[n] = bury(id, execution, ARGV[i + 3], ARGV[i + 4], ARGV[i + 5], ARGV[i + 6], ARGV[i + 7])
  elseif kind == 'retry' then
    replies[n] = retry(id, execution, ARGV[i + 3], ARGV[i + 4], ARGV[i + 5], ARGV[i + 6], ARGV[i + 7])
  else
    replies[n] = release(id, execution, ARGV[i + 3])
  end
  i = i + WIDTH[kind]
end

for first = 1, #removed, 4000 do
  local last = math.min(first + 3999, #removed)
  call('ZREM', STARTED, unpack(removed, first, last))
  call('SREM', 'rq:worker:' .. worker .. ':executions', unpack(removed, first, last))
end
for j = i, #ARGV, 2 do
  call('DEL', 'rq:execution:' .. ARGV[j] .. ':' .. ARGV[j + 1], 'rq:executions:' .. ARGV[j])
end
for first = 1, #finished, 4000 do
  call('ZADD', FINISHED, unpack(finished, first, math.min(first + 3999, #finished)))
end
if #finished > 0 then
  -- RQ's finished list stays short: what is older, by number or by time, goes with its job.
  local surplus = math.max(call('ZCARD', FINISHED) - FINISHED_CAP, 0)
  if surplus > 0 then
    local old = call('ZPOPMIN', FINISHED, surplus)
    local gone = {}
    for n = 1, #old, 2 do gone[#gone + 1] = job_key(old[n]) end
    for first = 1, #gone, 4000 do call('DEL', unpack(gone, first, math.min(first + 3999, #gone))) end
  end
  call('ZREMRANGEBYSCORE', FINISHED, '-inf', now)
end
local out = {replies}
for run, list in pairs(verdicts) do
  local window_key, tally, change = rk(run, 'window'), rk(run, 'tally'), {}
  local function count(entry, by)
    local space = string.find(entry, ' ', 1, true)
    local verdict = string.sub(entry, 1, space - 1)
    local both = string.sub(entry, 1, string.find(entry, ' ', space + 1, true) - 1)
    change[verdict] = (change[verdict] or 0) + by
    change[both] = (change[both] or 0) + by
  end
  for _, entry in ipairs(list) do count(entry, 1) end
  for first = 1, #list, 4000 do
    call('LPUSH', window_key, unpack(list, first, math.min(first + 3999, #list)))
  end
  local surplus = call('LLEN', window_key) - window
  if surplus > 0 then
    for _, entry in ipairs(call('RPOP', window_key, surplus)) do count(entry, -1) end
  end
  for field, by in pairs(change) do if by ~= 0 then call('HINCRBY', tally, field, by) end end
  out[#out + 1] = run
  out[#out + 1] = call('HGETALL', tally)
end
flush()
return out
