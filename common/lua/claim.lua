#!lua flags=allow-oom
-- Take up to `count` jobs for one consumer: off the queue, into the started registry, STARTED, in one step.
-- ARGV: worker, server, count, execution prefix, claim TTL (s), time (ISO), suspects allowed (0/1),
--       most results waiting, most bytes of them, most bytes of a job's data, reason for foreign jobs (RQ result payload), max jobs looked at.
-- Returns {state, {id, execution, data, attempts, deaths, tries, ...}, queue length, scheduled}.
--   state: 'ok', 'suspended', 'paused' (guard), 'full' (results wait for the collector)
local worker, server, count, prefix = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local ttl, iso, suspects = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local results_limit, results_bytes = tonumber(ARGV[8]), tonumber(ARGV[9])
local most_bytes, foreign = tonumber(ARGV[10]), ARGV[11]
if call('EXISTS', 'rq:suspended') == 1 then return {'suspended', {}, 0, 0} end

-- Which runs may be worked on now.
local gates, open, gate_reason = {}, 0, 'ok'
local active = call('SMEMBERS', 'pm:active')
for _, run in ipairs(active) do
  local gate = false
  local paused = call('HMGET', rk(run, 'paused'), '*', server)
  if paused[1] or paused[2] then gate = 'paused'
  elseif call('XLEN', rk(run, 'results')) >= results_limit then gate = 'full'
  elseif tonumber(call('HGET', rk(run, 'counts'), 'waiting_bytes') or '0') >= results_bytes then gate = 'full' end
  gates[run] = gate
  if gate then gate_reason = gate else open = open + 1 end
end
if open == 0 and #active > 0 then
  local queued = call('LLEN', QUEUE)
  for _, run in ipairs(active) do queued = queued + call('LLEN', rk(run, 'held')) end
  return {gate_reason, {}, queued, call('ZCARD', SCHEDULED)}
end

local now = now_s()
local expiry = string.format('%.6f', now + ttl)
local claimed, wip, running, mine, taken = {}, {}, {}, {}, 0
local known = {}

local function fail_foreign(id)
  local key = job_key(id)
  if call('TYPE', key).ok ~= 'hash' then return end
  call('HSET', key, 'status', 'failed', 'ended_at', iso)
  call('ZADD', FAILED, now + FAILED_TTL, id)
  call('XADD', 'rq:results:' .. id, 'MAXLEN', '~', 10, '*', 'type', 2, 'created_at', math.floor(now), 'exc_string', foreign)
  call('EXPIRE', 'rq:results:' .. id, FAILED_TTL)
  call('EXPIRE', key, FAILED_TTL)
end

-- Whether this list entry is of a job that may be worked on now: its run and its unit.
local function sift(id)
  local run, unit, digits = parse(id)
  if not run then return fail_foreign(id) end
  if gates[run] == nil then
    if call('EXISTS', rk(run, 'settings')) == 0 then return fail_foreign(id) end
    -- A finished run has work again: somebody requeued a dead letter.
    call('SADD', 'pm:active', run)
    gates[run] = false
  end
  if gates[run] then call('RPUSH', rk(run, 'held'), id); return end
  if not known[run] then known[run] = admitted(run) end
  if unit >= known[run] then return fail_foreign(id) end
  return run, digits
end

local function take(id, run, unit, done)
  if mine[id] then return end -- a second list entry of a job taken just now
  local key = job_key(id)
  local job = redis.pcall('HMGET', key, 'status', 'data', 'owner', 'deaths', 'attempts', 'tries')
  if job.err then return end -- somebody put a value of another type there: not a job
  local data, owner = job[2] or '', job[3]
  local deaths, attempts, tries = tonumber(job[4]) or 0, tonumber(job[5]) or 0, tonumber(job[6]) or 0
  if done == 1 then
    -- A dead letter that somebody requeued lives again; anything else here is a leftover list entry.
    if data == '' or job[1] ~= 'queued' or call('HEXISTS', rk(run, 'dead'), unit) == 0 then return end
    local letter = cjson.decode(call('HGET', rk(run, 'dead'), unit))
    call('HDEL', rk(run, 'dead'), unit)
    call('SETBIT', rk(run, 'done'), unit, 0)
    call('ZREM', FAILED, id)
    call('PERSIST', key)
    add(run, 'dead', -1); add(run, 'queued', 1); add(run, 'dead:' .. letter.reason, -1); add(run, 'revived', 1)
    owner, deaths, attempts, tries = false, 0, 0, 0
  elseif data == '' then
    call('SADD', rk(run, 'missing'), unit)
    return
  end
  if owner and owner ~= '' then
    local beat = call('ZSCORE', STARTED, id .. ':' .. owner)
    if beat and tonumber(beat) > now then return end -- a second list entry: its job is running
    -- Queued by somebody who did not know of the claim: its holder died. Still counted as in flight.
    call('ZREM', STARTED, id .. ':' .. owner)
    deaths = deaths + 1
    add(run, 'redeliveries', 1); add(run, 'in_flight', -1); add(run, 'queued', 1)
    call('HSET', key, 'owner', '', 'deaths', deaths)
  end
  if deaths >= 2 then
    -- A suspect runs with no other suspect beside it, so that a killer cannot take the others along.
    if suspects < 1 then
      call('ZADD', SCHEDULED, now + 1, id)
      call('HSET', key, 'status', 'scheduled')
      return
    end
    suspects = suspects - 1
  end
  taken = taken + 1
  mine[id] = true
  local execution = prefix .. string.format('%04x', taken)
  call('HSET', key, 'status', 'started', 'owner', execution, 'started_at', iso, 'worker_name', worker)
  local member = id .. ':' .. execution
  running[taken] = member
  wip[2 * taken - 1], wip[2 * taken] = expiry, member
  if #data > most_bytes then data = '' end
  local n = #claimed
  claimed[n + 1], claimed[n + 2], claimed[n + 3] = id, execution, data
  claimed[n + 4], claimed[n + 5], claimed[n + 6] = attempts, deaths, tries
  add(run, 'queued', -1)
  add(run, 'in_flight', 1)
end

local function take_all(ids)
  local runs, digits, units = {}, {}, {}
  for n, id in ipairs(ids) do
    local run, unit = sift(id)
    if run then
      runs[n], digits[n] = run, unit
      local list = units[run]
      if not list then list = {}; units[run] = list end
      list[#list + 1] = unit
    end
  end
  local bits, at = {}, {}
  for run, list in pairs(units) do bits[run], at[run] = done_bits(run, list, 'GET'), 0 end
  for n, id in ipairs(ids) do
    local run = runs[n]
    if run then
      at[run] = at[run] + 1
      take(id, run, digits[n], bits[run][at[run]])
    end
  end
end

-- Due retries first, then jobs held while their run was paused, then the queue.
local due = call('ZRANGEBYSCORE', SCHEDULED, '-inf', now, 'LIMIT', 0, count)
if #due > 0 then
  call('ZREM', SCHEDULED, unpack(due))
  for _, id in ipairs(due) do call('HSET', job_key(id), 'status', 'queued') end
  take_all(due)
end
for _, run in ipairs(active) do
  if not gates[run] and taken < count then
    local held = call('LPOP', rk(run, 'held'), count - taken)
    if held then take_all(held) end
  end
end
local looks = 0
while taken < count and looks < tonumber(ARGV[12]) do
  local ids = call('LPOP', QUEUE, count - taken)
  if not ids then break end
  looks = looks + #ids
  take_all(ids)
end
for first = 1, #wip, 4000 do call('ZADD', STARTED, unpack(wip, first, math.min(first + 3999, #wip))) end
for first = 1, #running, 4000 do
  call('SADD', 'rq:worker:' .. worker .. ':executions', unpack(running, first, math.min(first + 3999, #running)))
end
flush()
return {'ok', claimed, call('LLEN', QUEUE), call('ZCARD', SCHEDULED)}
