#!lua flags=allow-oom
-- Give back claims that this worker made but does not know of: the answer to a claim was lost on the way.
-- ARGV: worker, then the members `<job>:<execution>` it does know. Returns how many were given back.
local worker = ARGV[1]
local executions, mine, back = 'rq:worker:' .. worker .. ':executions', {}, 0
for i = 2, #ARGV do mine[ARGV[i]] = true end
for _, member in ipairs(call('SMEMBERS', executions)) do
  if not mine[member] then
    local id, execution = string.match(member, '^(.+):([^:]+)$')
    local run = id and parse(id)
    if run and call('HGET', job_key(id), 'owner') == execution then
      call('HSET', job_key(id), 'status', 'queued', 'owner', '')
      call('LPUSH', QUEUE, id)
      add(run, 'in_flight', -1); add(run, 'queued', 1); add(run, 'handed_back', 1)
      back = back + 1
    end
    call('ZREM', STARTED, member)
    call('SREM', executions, member)
  end
end
flush()
return back
