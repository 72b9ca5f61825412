#!lua flags=allow-oom
-- Fix which completions go into the next parts: those up to one stream id, cut from the head by a rule that the
-- seal names, so that whoever reads them gets the same parts.
-- ARGV: run, lease token, part number expected, seal that stands or '', seal to stand, its last stream id.
-- Completions are only added behind those that wait. They go from the head by a commit, which needs the seal, or
-- by the taking over of a part, which ends the seal: what it covers cannot change under it.
-- An error when the lease, the number or the standing seal is not what the caller takes it for, or the last
-- completion is gone.
local run = ARGV[1]
if call('GET', 'pm:lease') ~= ARGV[2] then return redis.error_reply('NOTLEASED the lease is held by another collector') end
local number = call('LLEN', rk(run, 'parts'))
if tostring(number) ~= ARGV[3] then return redis.error_reply('NOTNEXT the next part is ' .. number) end
if (call('GET', rk(run, 'seal')) or '') ~= ARGV[4] then return redis.error_reply('NOTSTANDING another seal stands') end
if #call('XRANGE', rk(run, 'results'), ARGV[6], ARGV[6]) == 0 then
  return redis.error_reply('NOTTHERE a completion to be sealed is gone')
end
-- Written also when it stands already, so that this connection's wait for the disk covers it.
call('SET', rk(run, 'seal'), ARGV[5])
return 1
