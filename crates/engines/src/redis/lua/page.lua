-- A page of an index, in its order, with what each member stands for.
-- KEYS: meta, an index, the hash that has the bodies.
-- ARGV: from, to (as ZRANGEBYLEX takes them), how many at most, how many bytes at most (but one body, where there is one), at
-- which byte of a member its id begins.
-- Answers: where the store is, then id and body by turns. A member without a body is told by a body that is false.
local AT_FIRST, AT_MOST = 16, 1000

local from, to = ARGV[1], ARGV[2]
local left, bytes_left, id_begins = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local answer = { redis.call('HGET', KEYS[1], 'applied') or '0' }
local seen, bytes = 0, 0
while left > 0 do
  -- As many at once as will fit by the size of those before: bodies that are not answered are not read.
  local count = AT_FIRST
  if seen > 0 then
    count = math.floor((bytes_left - bytes) / math.max(bytes / seen, 1)) + 1
  end
  count = math.min(count, left, AT_MOST)
  local members = redis.call('ZRANGEBYLEX', KEYS[2], from, to, 'LIMIT', 0, count)
  if #members == 0 then
    return answer
  end
  local ids = {}
  for i, member in ipairs(members) do
    ids[i] = string.sub(member, id_begins)
  end
  for i, body in ipairs(redis.call('HMGET', KEYS[3], unpack(ids))) do
    bytes = bytes + #(body or '')
    if bytes > bytes_left and seen > 0 then
      return answer
    end
    seen = seen + 1
    answer[#answer + 1], answer[#answer + 2] = ids[i], body
  end
  left = left - #members
  from = '(' .. members[#members]
end
return answer
