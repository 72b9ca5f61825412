#!lua flags=allow-oom
-- Fix the range of the next part. ARGV: run, lease token, part number expected, most records, most bytes.
-- Returns the seal that stands, `number first last records`, an older one if it was not committed;
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
local entries = call('XRANGE', rk(run, 'results'), '-', '+', 'COUNT', ARGV[4])
if #entries == 0 then return '' end
local bytes, most, last = 0, tonumber(ARGV[5]), 0
for n, entry in ipairs(entries) do
  bytes = bytes + #entry[2][2]
  if n > 1 and bytes > most then break end
  last = n
end
local seal = number .. ' ' .. entries[1][1] .. ' ' .. entries[last][1] .. ' ' .. last
call('SET', key, seal)
return seal
