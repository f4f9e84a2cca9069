-- One atomic write of a partition's inboxes, checked against the epoch and the offset.
--
-- KEYS: meta, boxes, rows, shared, references, reclaim.
-- ARGV: epoch, expected, applied, '1' to reset, the number of earlier writes if the writer has it or '', then six numbers of arguments, and
-- then those:
--   boxes to put (uid, box)  boxes to drop (uid)  hours to add (hour, uid)  hours to remove (uid)
--   rows to put (field, row)  rows to drop (field)
-- and to the end, in order, steps of shared rows (seq, added references or, below zero, removed ones, row or '').
local META, BOXES, ROWS, SHARED, REFERENCES, RECLAIM = 1, 2, 3, 4, 5, 6
-- The maximum number of ARGV values in one command: Lua's stack takes about 8 000. An even number, for pairs.
local CHUNK = 4000

local epoch, applied, writes = unpack(redis.call('HMGET', KEYS[META], 'epoch', 'applied', 'writes'))
writes = writes or '0'
if epoch and ARGV[1] < epoch then
  return { 'older_epoch' }
end
-- An absent offset is zero. The writer formats zero with its full width.
-- A store that lost writes may still be at the same offset, because acknowledgements do not move it. Its number of writes shows the loss.
if (applied or string.rep('0', #ARGV[2])) ~= ARGV[2] or (ARGV[5] ~= '' and ARGV[5] ~= writes) then
  return { 'behind', applied or '0' }
end

-- A full Redis rejects the first command, and then nothing was written. After it, Redis rejects no command of the script.
writes = string.format('%.0f', tonumber(writes) + 1)
redis.call('HSET', KEYS[META], 'epoch', ARGV[1], 'applied', ARGV[3], 'writes', writes)
if ARGV[4] == '1' then
  -- UNLINK removes keys of any size at once and frees them in the background.
  redis.call('UNLINK', unpack(KEYS, 2))
end

local at = 12
local function in_chunks(count, command, key)
  local last = at + tonumber(count) - 1
  while at <= last do
    local to = math.min(at + CHUNK - 1, last)
    redis.call(command, key, unpack(ARGV, at, to))
    at = to + 1
  end
end
in_chunks(ARGV[6], 'HSET', KEYS[BOXES])
in_chunks(ARGV[7], 'HDEL', KEYS[BOXES])
in_chunks(ARGV[8], 'ZADD', KEYS[RECLAIM])
in_chunks(ARGV[9], 'ZREM', KEYS[RECLAIM])
in_chunks(ARGV[10], 'HSET', KEYS[ROWS])
in_chunks(ARGV[11], 'HDEL', KEYS[ROWS])

for step = at, #ARGV, 3 do
  local seq, references, row = ARGV[step], tonumber(ARGV[step + 1]), ARGV[step + 2]
  local before = tonumber(redis.call('HGET', KEYS[REFERENCES], seq) or 0)
  local after = before + references
  if after > 0 then
    if before == 0 then
      redis.call('HSET', KEYS[SHARED], seq, row)
    end
    redis.call('HSET', KEYS[REFERENCES], seq, string.format('%.0f', after))
  elseif before > 0 then
    redis.call('HDEL', KEYS[SHARED], seq)
    redis.call('HDEL', KEYS[REFERENCES], seq)
  end
end
return { 'done', writes }
