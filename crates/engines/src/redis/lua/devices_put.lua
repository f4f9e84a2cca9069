-- Stores a device under its name. Rejects a further device of a user that has the maximum number.
-- KEYS: the user's hash. ARGV: maximum number, name, device.
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[1]) then
  return 'too_many'
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
return 'done'
