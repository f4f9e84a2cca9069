-- Counts by bucket, summed from the counts by minute.
-- KEYS: meta, minutes, counts. ARGV: from, to (as ZRANGEBYLEX takes them), minutes of a bucket.
-- Returns the applied offset, then alternately the first minute of a bucket and its count.
local CHUNK = 1000
local TOPIC_BYTES = 4
local HALF, SIGN = 2 ^ 32, 2 ^ 31

local answer = { redis.call('HGET', KEYS[1], 'applied') or '0' }
local from, bucket_minutes = ARGV[1], tonumber(ARGV[3])
local bucket, sum
local function close_bucket()
  if bucket then
    answer[#answer + 1], answer[#answer + 2] = string.format('%.0f', bucket), string.format('%.0f', sum)
  end
end
while true do
  local members = redis.call('ZRANGEBYLEX', KEYS[2], from, ARGV[2], 'LIMIT', 0, CHUNK)
  if #members == 0 then
    close_bucket()
    return answer
  end
  for i, count in ipairs(redis.call('HMGET', KEYS[3], unpack(members))) do
    local high, low = struct.unpack('>I4I4', members[i], TOPIC_BYTES + 1)
    local minute = (high - SIGN) * HALF + low
    local begins = math.floor(minute / bucket_minutes) * bucket_minutes
    if begins ~= bucket then
      close_bucket()
      bucket, sum = begins, 0
    end
    sum = sum + tonumber(count or 0)
  end
  from = '(' .. members[#members]
end
