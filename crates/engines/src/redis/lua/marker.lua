-- Compares a marker with the id of this installation, and writes it where it differs. Answers with the id that was there.
-- KEYS: the marker. ARGV: the id; `claim` to keep an id that is there already.
local found = redis.call('HGET', KEYS[1], 'id')
if not found or (found ~= ARGV[1] and ARGV[2] ~= 'claim') then
  redis.call('HSET', KEYS[1], 'id', ARGV[1])
end
return found
