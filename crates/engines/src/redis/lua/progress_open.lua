-- Stores the epoch of a subscription's owner and returns all its rows. Returns only the stored epoch if that is newer.
-- KEYS: the hash. ARGV: epoch. Epochs are decimals of fixed width, so that the text sorts as the numbers do: Lua's own numbers are exact
-- only below 2^53. The field `epoch` cannot be a row: those have 12 bytes.
local noted = redis.call('HGET', KEYS[1], 'epoch')
if noted and ARGV[1] < noted then
  return { 'fenced', noted }
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
local answer = { 'rows' }
local fields = redis.call('HGETALL', KEYS[1])
for at = 1, #fields, 2 do
  if fields[at] ~= 'epoch' then
    answer[#answer + 1] = fields[at]
    answer[#answer + 1] = fields[at + 1]
  end
end
return answer
