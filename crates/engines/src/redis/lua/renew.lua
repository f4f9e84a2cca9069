-- Renews a claim while its append is in progress. The clock of Redis decides, as in begin.lua.
-- KEYS: the claim. ARGV: holder, the time for which the claim is kept without an answer (in ms).
-- Returns 'held', or 'other' if the claim does not belong to the holder any more.
local holder, answer = unpack(redis.call('HMGET', KEYS[1], 'holder', 'answer'))
if holder ~= ARGV[1] or answer then
  return 'other'
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'held_at', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'held'
