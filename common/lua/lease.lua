#!lua flags=allow-oom
-- Take or keep the collector's lease. ARGV: token, time to live (ms). Returns 1 when it is held.
local holder = call('GET', 'pm:lease')
-- A lease that would last far longer than any is taken for was left by a clock that went back.
if holder and holder ~= ARGV[1] and call('PTTL', 'pm:lease') <= 2 * tonumber(ARGV[2]) then return 0 end
call('SET', 'pm:lease', ARGV[1], 'PX', ARGV[2])
return 1
