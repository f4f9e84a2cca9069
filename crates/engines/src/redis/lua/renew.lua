-- Keeps a claim from lapsing while its holder is at it. The clock of Redis decides, as in begin.lua.
-- KEYS: the claim. ARGV: holder, how long the claim is kept without an answer (in ms).
-- Answers: 'held', or 'other' where the claim is not the holder's any more.
local holder, answer = unpack(redis.call('HMGET', KEYS[1], 'holder', 'answer'))
if holder ~= ARGV[1] or answer then
  return 'other'
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'held_at', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'held'
