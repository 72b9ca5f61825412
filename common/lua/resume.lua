#!lua flags=allow-oom
-- Let a paused run go on, with an empty window. ARGV: run, then verdicts the guard is to accept from now on.
-- Returns how many pauses were lifted.
local run = ARGV[1]
local n = call('HLEN', rk(run, 'paused'))
call('DEL', rk(run, 'paused'), rk(run, 'window'), rk(run, 'tally'))
for i = 2, #ARGV do call('SADD', rk(run, 'accepted'), ARGV[i]) end
return n
