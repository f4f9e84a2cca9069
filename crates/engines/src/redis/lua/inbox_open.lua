-- Takes a partition for an epoch and answers where the store is and how often it was written; false where a newer epoch has it.
-- KEYS: meta. ARGV: epoch. Epochs and offsets are decimals of one width, so that text compares as numbers do: Lua's own
-- numbers are exact below 2^53 only.
local epoch, applied, writes = unpack(redis.call('HMGET', KEYS[1], 'epoch', 'applied', 'writes'))
if epoch and ARGV[1] < epoch then
  return false
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
return { applied or '0', writes or '0' }
