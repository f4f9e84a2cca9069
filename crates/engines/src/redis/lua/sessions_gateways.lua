-- The incarnations that have sessions and are not void. KEYS: void, by_gateway.
local NODE, GATEWAY = 5, 25
local answer, from = {}, '-'
while true do
  local first = redis.call('ZRANGEBYLEX', KEYS[2], from, '+', 'LIMIT', 0, 1)[1]
  if not first then
    return answer
  end
  local gateway = string.sub(first, 1, GATEWAY)
  local newest = redis.call('HGET', KEYS[1], string.sub(gateway, 1, NODE))
  if not newest or string.sub(gateway, NODE + 1) > newest then
    answer[#answer + 1] = gateway
  end
  -- After all sessions of this gateway.
  from = '(' .. gateway .. '\255'
end
