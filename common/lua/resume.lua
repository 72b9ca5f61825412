#!lua flags=allow-oom
-- Let a paused run go on, with an empty window. ARGV: run. Returns how many pauses were lifted.
local run = ARGV[1]
local n = call('HLEN', rk(run, 'paused'))
call('DEL', rk(run, 'paused'), rk(run, 'window'), rk(run, 'tally'))
return n
