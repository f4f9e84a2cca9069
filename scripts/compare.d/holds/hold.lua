-- Holds one message. KEYS: the sorted set of ids by due time, the hash of payloads. ARGV: due time in milliseconds, id, payload.
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 1
