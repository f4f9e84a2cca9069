-- Reads fields of hashes and the applied offset in one step.
-- KEYS: meta, then the hashes. ARGV: for each hash the number of fields, and then the fields.
-- Returns the applied offset, then for each field its value or false, in the order of ARGV.
local CHUNK = 4000

local answer, at = { redis.call('HGET', KEYS[1], 'applied') or '0' }, 1
for hash = 2, #KEYS do
  local last = at + tonumber(ARGV[at])
  at = at + 1
  while at <= last do
    local to = math.min(at + CHUNK - 1, last)
    for _, value in ipairs(redis.call('HMGET', KEYS[hash], unpack(ARGV, at, to))) do
      answer[#answer + 1] = value
    end
    at = to + 1
  end
end
return answer
