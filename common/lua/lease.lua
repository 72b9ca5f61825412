#!lua flags=allow-oom
-- Take or keep the collector's lease. ARGV: token, time to live (ms). Returns 1 when it is held.
local holder = call('GET', 'pm:lease')
if holder and holder ~= ARGV[1] then return 0 end
call('SET', 'pm:lease', ARGV[1], 'PX', ARGV[2])
return 1
