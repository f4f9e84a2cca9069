-- A page of an index, in its order, with the body of each member.
-- KEYS: meta, an index, the hash of the bodies.
-- ARGV: from, to (as ZRANGEBYLEX takes them), maximum number, maximum bytes (but at least one body, if there is one), the position of the
-- id in a member (from 1).
-- Returns the applied offset, then alternately id and body. A missing body is false.
local AT_FIRST, AT_MOST = 16, 1000

local from, to = ARGV[1], ARGV[2]
local left, bytes_left, id_begins = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local answer = { redis.call('HGET', KEYS[1], 'applied') or '0' }
local seen, bytes = 0, 0
while left > 0 do
  -- Estimates from the size of earlier bodies how many fit, so that few bodies are read and not returned.
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
