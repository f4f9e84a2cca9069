-- Takes a shard for an epoch and answers where the store is; false where a newer epoch has it.
-- KEYS: meta. ARGV: epoch. Epochs and offsets are decimals of one width, so that text compares as numbers do: Lua's own
-- numbers are exact below 2^53 only.
local epoch, applied = unpack(redis.call('HMGET', KEYS[1], 'epoch', 'applied'))
if epoch and ARGV[1] < epoch then
  return false
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
return applied or '0'
