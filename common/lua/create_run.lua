#!lua
-- Create a run, or tell what is there. ARGV: run, settings JSON, samples.
-- Returns the settings that stand: the caller compares them with its own.
local run = ARGV[1]
local key = rk(run, 'settings')
local standing = call('GET', key)
if standing then return standing end
-- Whatever a late process wrote under this name counts for nothing: the counters below start at 0.
for _, what in ipairs({'done', 'results', 'dead', 'window', 'tally', 'paused', 'accepted', 'held', 'missing', 'seal', 'parts'}) do
  call('DEL', rk(run, what))
end
call('DEL', rk(run, 'counts'), rk(run, 'position'))
call('SET', key, ARGV[2])
call('HSET', rk(run, 'counts'), 'accepted', 0, 'completed', 0, 'dead', 0, 'queued', 0, 'in_flight', 0, 'stored', 0)
call('HSET', rk(run, 'position'), 'index', 0, 'line', 0, 'offset', 0, 'chunk', '', 'ended', 0, 'samples', ARGV[3])
call('SADD', 'pm:runs', run)
call('SADD', 'pm:active', run)
call('SADD', 'rq:queues', QUEUE)
return ARGV[2]
