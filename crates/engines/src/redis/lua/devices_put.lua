-- Puts a device in the place of the one of the same name, unless the user has too many.
-- KEYS: the user's hash. ARGV: how many at most, name, device.
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[1]) then
  return 'too_many'
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
return 'done'
