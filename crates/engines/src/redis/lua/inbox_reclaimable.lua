-- Users whose hour is before one, the earliest first. KEYS: meta, reclaim. ARGV: the hour, how many at most.
-- Answers: where the store is, then their ids.
local answer = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
table.insert(answer, 1, redis.call('HGET', KEYS[1], 'applied') or '0')
return answer
