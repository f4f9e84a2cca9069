-- Moves due ids from the sorted set to the stream, with their payloads, and deletes them: atomically, like every script.
-- KEYS: the sorted set of ids by due time, the hash of payloads, the stream. ARGV: now in milliseconds, maximum number, stream length.
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #due == 0 then return 0 end
local payloads = redis.call('HMGET', KEYS[2], unpack(due))
for index = 1, #due do
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'payload', payloads[index])
end
redis.call('ZREM', KEYS[1], unpack(due))
redis.call('HDEL', KEYS[2], unpack(due))
return #due
