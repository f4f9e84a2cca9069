-- Writes rows, all or none. KEYS: the hash. ARGV: epoch, then for each row its place, its run and its value. Runs are decimals;
-- a value begins with its format (one byte) and its run (four bytes, the highest first).
local noted = redis.call('HGET', KEYS[1], 'epoch')
if noted and ARGV[1] ~= noted then
  return { 'fenced', noted }
end
for at = 2, #ARGV, 3 do
  local before = redis.call('HGET', KEYS[1], ARGV[at])
  -- What is of another format counts as lost.
  if before and #before >= 5 and string.byte(before, 1) == 1 then
    local run = struct.unpack('>I4', string.sub(before, 2, 5))
    if run > tonumber(ARGV[at + 1]) then
      return { 'newer_run', ARGV[at], string.format('%.0f', run) }
    end
  end
end
-- The first command is one that a full Redis refuses: then nothing was written. After it, Redis refuses none of a script.
redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
for at = 2, #ARGV, 3 do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 2])
end
return { 'done' }
