#!lua flags=allow-oom
-- Mark a run as finished, if it is: nothing open, every completion in a part, the whole input admitted.
-- ARGV: run. Returns 1 if it is finished now.
local run = ARGV[1]
local c = call('HMGET', rk(run, 'counts'), 'queued', 'in_flight', 'completed', 'stored')
local over = c[1] == '0' and c[2] == '0' and c[3] == c[4] and call('XLEN', rk(run, 'results')) == 0
if not over or call('HGET', rk(run, 'position'), 'ended') ~= '1' then return 0 end
call('SREM', 'pm:active', run)
return 1
