#!lua flags=allow-oom
-- Fix the ranges of the next parts. ARGV: run, lease token, part number expected, most records and most bytes of
-- a part, most parts. Several are fixed at once so that one wait for the disk covers them all; none but the first
-- has fewer than the most records or bytes.
-- Returns the seals that stand, `number first last records` a line, older ones if they were not committed;
-- '' when there is nothing to seal; an error when the lease or the number is not the caller's.
local run = ARGV[1]
if call('GET', 'pm:lease') ~= ARGV[2] then return redis.error_reply('NOTLEASED the lease is held by another collector') end
local key = rk(run, 'seal')
local standing = call('GET', key)
if standing then
  -- Written again, so that this connection's wait for the disk covers it.
  call('SET', key, standing)
  return standing
end
local number = call('LLEN', rk(run, 'parts'))
if tostring(number) ~= ARGV[3] then return redis.error_reply('NOTNEXT the next part is ' .. number) end
local records, most = tonumber(ARGV[4]), tonumber(ARGV[5])
local seals, from = {}, '-'
while #seals < tonumber(ARGV[6]) do
  local entries = call('XRANGE', rk(run, 'results'), from, '+', 'COUNT', records)
  local bytes, last = 0, 0
  for n, entry in ipairs(entries) do
    bytes = bytes + #entry[2][2]
    if n > 1 and bytes > most then break end
    last = n
  end
  if last == 0 or (#seals > 0 and last == #entries and last < records) then break end
  from = '(' .. entries[last][1]
  seals[#seals + 1] = (number + #seals) .. ' ' .. entries[1][1] .. ' ' .. entries[last][1] .. ' ' .. last
end
if #seals == 0 then return '' end
local text = table.concat(seals, '\n')
call('SET', key, text)
return text
