-- Shared by every script: the spellings of keys, and the few steps that several scripts take.
-- Keys are built from names, so these scripts need one Redis, not a cluster.
local QUEUE = 'rq:queue:completions'
local STARTED = 'rq:wip:completions'
local SCHEDULED = 'rq:scheduled:completions'
local FINISHED = 'rq:finished:completions'
local FAILED = 'rq:failed:completions'
local FINISHED_TTL = 500     -- seconds RQ keeps a finished job by default
local FINISHED_CAP = 1000    -- finished jobs kept at most, whatever the rate
local FAILED_TTL = 31536000  -- RQ's default for failed jobs: a year
local SPENT_DATA = '["consumers.generate",null,[],{}]'

local call = redis.call

local function rk(run, what) return 'pm:run:' .. run .. ':' .. what end
local function job_key(id) return 'rq:job:' .. id end

-- A job id is <run>-<unit>, the unit without leading zeros: one id for each unit. Anything else is not ours.
-- Returns the run, the unit and the unit's digits.
local function parse(id)
  local run, unit = string.match(id, '^(.+)%-(%d+)$')
  if run and (unit == '0' or string.byte(unit) ~= 48) then return run, tonumber(unit), unit end
end

-- A run's terminal bits of many units by one command: a list of 0 and 1. `verb` is 'GET', or 'SET': then all are
-- set, and the list tells how they were. Each unit must be one that was admitted.
local function done_bits(run, units, verb)
  local key, bits = rk(run, 'done'), {}
  for first = 1, #units, 1000 do
    local args = {}
    for n = first, math.min(first + 999, #units) do
      local at = #args
      args[at + 1], args[at + 2], args[at + 3] = verb, 'u1', units[n]
      if verb == 'SET' then args[at + 4] = 1 end
    end
    for _, bit in ipairs(call(verb == 'SET' and 'BITFIELD' or 'BITFIELD_RO', key, unpack(args))) do bits[#bits + 1] = bit end
  end
  return bits
end

-- Write the hash of a job that is new, whatever stood there under its name.
local function make_job(id, description, now, timeout, data)
  local fields = {'status', 'queued', 'origin', 'completions', 'description', description,
    'created_at', now, 'enqueued_at', now, 'timeout', timeout,
    -- A stock worker or a stock clean-up puts the job back at the head instead of failing it.
    'retries_left', 1000000, 'enqueue_at_front_on_retry', 1, 'data', data}
  local key = job_key(id)
  if call('HSET', key, unpack(fields)) < #fields / 2 then
    call('DEL', key)
    call('HSET', key, unpack(fields))
  end
end

local function now_s()
  local t = call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end

-- How many units of a run are known to exist: those below are admitted.
local function admitted(run)
  local p = call('HMGET', rk(run, 'position'), 'index', 'samples')
  return (tonumber(p[1]) or 0) * (tonumber(p[2]) or 1)
end

-- Counter changes are gathered per run and written once at the end of a script.
local deltas = {}
local function add(run, field, n)
  local d = deltas[run]
  if not d then d = {}; deltas[run] = d end
  d[field] = (d[field] or 0) + n
end
local function flush()
  for run, fields in pairs(deltas) do
    for field, n in pairs(fields) do
      if n ~= 0 then call('HINCRBY', rk(run, 'counts'), field, n) end
    end
  end
end

-- Take a completion out of the results stream, if it is there.
local function drop_result(run, stream_id)
  local entry = call('XRANGE', rk(run, 'results'), stream_id, stream_id)[1]
  if entry then
    call('XDEL', rk(run, 'results'), stream_id)
    add(run, 'waiting_bytes', -#entry[2][2])
  end
end
