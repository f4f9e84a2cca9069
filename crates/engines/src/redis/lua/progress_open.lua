-- Notes the epoch of a subscription's owner and answers with all its rows; with the noted epoch alone where that is newer.
-- KEYS: the hash. ARGV: epoch. Epochs are decimals of one width, so that text compares as numbers do: Lua's own numbers are
-- exact below 2^53 only. The field `epoch` cannot be a row's: those have 12 bytes.
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
