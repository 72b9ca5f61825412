#!lua flags=allow-oom
-- Let go of the collector's lease if it is still held. ARGV: token.
if call('GET', 'pm:lease') == ARGV[1] then return call('DEL', 'pm:lease') end
return 0
