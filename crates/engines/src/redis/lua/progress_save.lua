-- Writes rows, all or none. KEYS: the hash. ARGV: epoch, then for each row its place, its run and its value. Runs are decimals. A value
-- begins with its format (one byte) and its run (four bytes, big-endian).
local noted = redis.call('HGET', KEYS[1], 'epoch')
if noted and ARGV[1] ~= noted then
  return { 'fenced', noted }
end
for at = 2, #ARGV, 3 do
  local before = redis.call('HGET', KEYS[1], ARGV[at])
  -- A value of another format counts as lost.
  if before and #before >= 5 and string.byte(before, 1) == 1 then
    local run = struct.unpack('>I4', string.sub(before, 2, 5))
    if run > tonumber(ARGV[at + 1]) then
      return { 'newer_run', ARGV[at], string.format('%.0f', run) }
    end
  end
end
-- A full Redis rejects the first command, and then nothing was written. After it, Redis rejects no command of the script.
redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
for at = 2, #ARGV, 3 do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 2])
end
return { 'done' }
