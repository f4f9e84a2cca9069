-- Takes a shard for an epoch. Returns the applied offset, or false if a newer epoch has the shard.
-- KEYS: meta. ARGV: epoch. Epochs and offsets are decimals of fixed width, so that the text sorts as the numbers do: Lua's own numbers are
-- exact only below 2^53.
local epoch, applied = unpack(redis.call('HMGET', KEYS[1], 'epoch', 'applied'))
if epoch and ARGV[1] < epoch then
  return false
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
return applied or '0'
