#!lua flags=allow-oom
-- Pause a run or one of its servers. ARGV: run, '*' or the server's URL, reason (JSON). Returns 1 if it was not paused.
if call('EXISTS', rk(ARGV[1], 'settings')) == 0 then return 0 end
return call('HSETNX', rk(ARGV[1], 'paused'), ARGV[2], ARGV[3])
