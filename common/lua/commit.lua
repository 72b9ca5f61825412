#!lua flags=allow-oom
-- Record a part that is in the output and let its entries go. ARGV: run, seal, part number, first and last stream id,
-- the id after the last, bytes and number of its record lines, part row (JSON).
-- Parts are committed in order: the part must begin with the first completion that waits.
-- Any collector may commit under a standing seal: the bytes are the same whoever built them.
-- Returns 1 committed, 0 the seal does not stand, or the part is not the next one.
local run, seal, first, last = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
if call('GET', rk(run, 'seal')) ~= seal or tostring(call('LLEN', rk(run, 'parts'))) ~= ARGV[3] then return 0 end
local head = call('XRANGE', rk(run, 'results'), '-', '+', 'COUNT', 1)[1]
if not head or head[1] ~= first then return 0 end
call('XTRIM', rk(run, 'results'), 'MINID', ARGV[6])
call('RPUSH', rk(run, 'parts'), ARGV[9])
if last == string.match(seal, '^%S+') then call('DEL', rk(run, 'seal')) end
add(run, 'waiting_bytes', -ARGV[7])
add(run, 'stored', tonumber(ARGV[8]))
flush()
return 1
