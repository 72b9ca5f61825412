#!lua flags=allow-oom
-- Take over from the output what this Redis does not know of: a part, or dead letters, after a loss of its data.
-- ARGV: run, kind ('part' or 'dead'), part number, part row (JSON), last stream id looked at or '', then per unit:
--   part: unit, verdict, output tokens, stream id to drop or ''; dead: unit, letter JSON, reason.
-- Returns 1 adopted, 0 that part number is not the next one, 2 completions have come since the caller looked,
-- -1 no such run: Redis was emptied meanwhile.
local run, kind = ARGV[1], ARGV[2]
if call('EXISTS', rk(run, 'settings')) == 0 then return -1 end
if kind == 'part' then
  if tostring(call('LLEN', rk(run, 'parts'))) ~= ARGV[3] then return 0 end
  -- One of them could be of this part too: the caller must name its entry, or it would go into a second part.
  local after = ARGV[5] == '' and '-' or '(' .. ARGV[5]
  if #call('XRANGE', rk(run, 'results'), after, '+', 'COUNT', 1) > 0 then return 2 end
end
local limit = admitted(run)
local i, units = 6, 0

-- A unit becomes terminal: it is accepted with it, or leaves the counter it stood in.
local function settle(unit)
  if call('SETBIT', rk(run, 'done'), unit, 1) == 1 then return false end
  if tonumber(unit) < limit then
    local owner = call('HGET', job_key(run .. '-' .. unit), 'owner')
    if owner and owner ~= '' then add(run, 'in_flight', -1) else add(run, 'queued', -1) end
    call('SREM', rk(run, 'missing'), unit)
    call('DEL', job_key(run .. '-' .. unit))
  else
    add(run, 'accepted', 1)
  end
  return true
end

if kind == 'part' then
  while i <= #ARGV do
    if settle(ARGV[i]) then
      add(run, 'completed', 1)
      add(run, 'verdict:' .. ARGV[i + 1], 1)
      add(run, 'output_tokens', tonumber(ARGV[i + 2]))
    elseif call('HDEL', rk(run, 'dead'), ARGV[i]) == 1 then
      -- Dead here, completed in the output: the record stands.
      add(run, 'dead', -1); add(run, 'completed', 1)
    end
    if ARGV[i + 3] ~= '' then drop_result(run, ARGV[i + 3]) end
    units = units + 1
    i = i + 4
  end
  call('RPUSH', rk(run, 'parts'), ARGV[4])
  call('DEL', rk(run, 'seal'))
  add(run, 'stored', units)
  add(run, 'adopted', units)
else
  while i <= #ARGV do
    if settle(ARGV[i]) then
      call('HSET', rk(run, 'dead'), ARGV[i], ARGV[i + 1])
      add(run, 'dead', 1); add(run, 'dead:' .. ARGV[i + 2], 1)
    end
    i = i + 3
  end
end
flush()
return 1
