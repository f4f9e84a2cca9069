-- Compares a marker with the id of this installation, and writes it if it differs. Returns the id that it had.
-- KEYS: the marker. ARGV: the id; `claim` keeps an existing id.
local found = redis.call('HGET', KEYS[1], 'id')
if not found or (found ~= ARGV[1] and ARGV[2] ~= 'claim') then
  redis.call('HSET', KEYS[1], 'id', ARGV[1])
end
return found
