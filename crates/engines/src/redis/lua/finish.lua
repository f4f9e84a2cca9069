-- Stores the first answer to a claim.
-- KEYS: the claim, and for an id the list of its answers. ARGV: fingerprint, answer, time of the answer, the windows of the answer and of
-- the id (in ms).
local kept = redis.call('HGET', KEYS[1], 'answer')
local answered_at = redis.call('HGET', KEYS[1], 'answered_at')
-- A late answer does not replace one that was stored meanwhile.
if not kept or tonumber(answered_at) < tonumber(ARGV[3]) - tonumber(ARGV[4]) then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'answer', ARGV[2], 'answered_at', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
if KEYS[2] then
  redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
  local too_old = string.format('(%.0f', tonumber(ARGV[3]) - tonumber(ARGV[5]))
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', too_old)
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
end
return 'done'
