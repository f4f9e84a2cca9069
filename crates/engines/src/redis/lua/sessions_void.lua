-- Voids an incarnation and earlier ones of the same node. KEYS: void, pictures. ARGV: node, incarnation (decimals of one width).
local newest = redis.call('HGET', KEYS[1], ARGV[1])
if not newest or newest < ARGV[2] then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
-- News of them is rejected from now on, so their pictures are not needed.
for _, gateway in ipairs(redis.call('HKEYS', KEYS[2])) do
  if string.sub(gateway, 1, #ARGV[1]) == ARGV[1] and string.sub(gateway, #ARGV[1] + 1) <= ARGV[2] then
    redis.call('HDEL', KEYS[2], gateway)
  end
end
return 'done'
