-- Removes a device. If a token is given, only a device that still has that token. KEYS: the user's hash. ARGV: name, optional token.
local device = redis.call('HGET', KEYS[1], ARGV[1])
if not device then
  return 0
end
if ARGV[2] then
  local understood, read = pcall(cjson.decode, device)
  if not understood or read.token ~= ARGV[2] then
    return 0
  end
end
return redis.call('HDEL', KEYS[1], ARGV[1])
