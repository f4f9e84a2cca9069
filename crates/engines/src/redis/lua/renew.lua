-- Keeps a claim from lapsing while its holder is at it.
-- KEYS: the claim. ARGV: holder, now, how long the claim is kept without an answer (in ms).
local holder, answer = unpack(redis.call('HMGET', KEYS[1], 'holder', 'answer'))
if holder == ARGV[1] and not answer then
  redis.call('HSET', KEYS[1], 'held_at', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return 'done'
