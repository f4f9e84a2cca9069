-- Removes the rows of one line. KEYS: the hash. ARGV: epoch, the line: the prefix of its places.
local noted = redis.call('HGET', KEYS[1], 'epoch')
if noted and ARGV[1] < noted then
  return { 'fenced', noted }
end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if field ~= 'epoch' and string.sub(field, 1, #ARGV[2]) == ARGV[2] then
    redis.call('HDEL', KEYS[1], field)
  end
end
return { 'done' }
