#!lua flags=allow-oom
-- Record a part that is in the output and let its entries go. ARGV: run, seal, part row (JSON), records.
-- The seal must be the first of those that stand: parts are committed in order.
-- Any collector may commit a standing seal: the bytes are the same whoever built them.
-- Returns 1 committed, 0 the seal is not the standing one.
local run = ARGV[1]
local standing = call('GET', rk(run, 'seal'))
local head, rest = string.match(standing or '', '^([^\n]*)\n?(.*)$')
if head ~= ARGV[2] then return 0 end
local _, first, last = string.match(ARGV[2], '^(%S+) (%S+) (%S+)')
for _ = 1, 1000000 do
  local entries = call('XRANGE', rk(run, 'results'), first, last, 'COUNT', 1000)
  if #entries == 0 then break end
  local ids = {}
  for n, entry in ipairs(entries) do
    ids[n] = entry[1]
    add(run, 'waiting_bytes', -#entry[2][2])
  end
  call('XDEL', rk(run, 'results'), unpack(ids))
end
call('RPUSH', rk(run, 'parts'), ARGV[3])
if rest == '' then call('DEL', rk(run, 'seal')) else call('SET', rk(run, 'seal'), rest) end
add(run, 'stored', tonumber(ARGV[4]))
flush()
return 1
