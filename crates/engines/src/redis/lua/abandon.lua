-- Gives a claim up, where it is still the holder's.
-- KEYS: the claim. ARGV: holder.
local holder, answer = unpack(redis.call('HMGET', KEYS[1], 'holder', 'answer'))
if holder == ARGV[1] and not answer then
  redis.call('DEL', KEYS[1])
end
return 'done'
