-- The users whose hour is before a given one, the earliest first. KEYS: meta, reclaim. ARGV: the hour, the maximum number.
-- Returns the applied offset, then the user ids.
local answer = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
table.insert(answer, 1, redis.call('HGET', KEYS[1], 'applied') or '0')
return answer
