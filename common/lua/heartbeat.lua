#!lua flags=allow-oom
-- Keep one consumer's claims alive and make them visible to RQ's tools.
-- ARGV: worker, claim TTL (s), worker TTL (s), time (epoch s), jobs ended well since, jobs ended badly since,
--       live figures (JSON), their TTL (s), time (ISO), state by RQ's words, then per claim: job id, execution.
-- Returns {1 if RQ still knows this worker, the positions, from 1, of claims that are no longer this consumer's}.
local worker, ttl, worker_ttl, stamp = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local now = now_s()
local lost, executions = {}, 'rq:worker:' .. worker .. ':executions'
for i = 11, #ARGV, 2 do
  local id, execution = ARGV[i], ARGV[i + 1]
  local member = id .. ':' .. execution
  if call('HGET', job_key(id), 'owner') == execution then
    call('ZADD', STARTED, now + ttl, member)
    local key = 'rq:execution:' .. member
    call('HSETNX', key, 'created_at', stamp)
    call('HSET', key, 'id', execution, 'job_id', id, 'last_heartbeat', stamp, 'worker_name', worker)
    call('EXPIRE', key, worker_ttl)
    call('ZADD', 'rq:executions:' .. id, now + worker_ttl, execution)
    call('EXPIRE', 'rq:executions:' .. id, worker_ttl)
    call('SADD', executions, member)
  else
    call('ZREM', STARTED, member)
    call('SREM', executions, member)
    lost[#lost + 1] = (i - 9) / 2
  end
end
call('EXPIRE', executions, worker_ttl)
call('SET', 'pm:consumer:' .. worker, ARGV[7], 'EX', ARGV[8])
local key = 'rq:worker:' .. worker
if call('EXISTS', key) == 0 then return {0, lost} end
call('HSET', key, 'last_heartbeat', ARGV[9], 'state', ARGV[10])
call('EXPIRE', key, worker_ttl)
if ARGV[5] ~= '0' then call('HINCRBY', key, 'successful_job_count', ARGV[5]) end
if ARGV[6] ~= '0' then call('HINCRBY', key, 'failed_job_count', ARGV[6]) end
return {1, lost}
