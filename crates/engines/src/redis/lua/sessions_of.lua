-- The sessions of users, and the time since the shard's writer last vouched for them. KEYS: meta, void, users, sessions, seen. ARGV: users.
-- Returns that time in ms, or false; then for each user its last-seen time or false, the number of its sessions, and those: session and
-- body. `sessions_write.lua` describes the format.
local META, VOID, USERS, SESSIONS, SEEN = 1, 2, 3, 4, 5
local NODE, GATEWAY, SESSION, VERSION = 5, 25, 45, 20

local time, heard = redis.call('TIME'), redis.call('HGET', KEYS[META], 'heard')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local answer = { heard and string.format('%.0f', math.max(now - tonumber(heard), 0)) }
local void = {}
local function is_void(session)
  local node = string.sub(session, 1, NODE)
  if void[node] == nil then
    void[node] = redis.call('HGET', KEYS[VOID], node)
  end
  return void[node] and string.sub(session, NODE + 1, GATEWAY) <= void[node]
end
for _, uid in ipairs(ARGV) do
  answer[#answer + 1] = redis.call('ZSCORE', KEYS[SEEN], uid)
  local place, count = #answer + 1, 0
  answer[place] = '0'
  local list = redis.call('HGET', KEYS[USERS], uid) or ''
  for from = 1, #list, SESSION do
    local session = string.sub(list, from, from + SESSION - 1)
    local kept = not is_void(session) and redis.call('HGET', KEYS[SESSIONS], session)
    if kept then
      local length = struct.unpack('>I2', string.sub(kept, VERSION + 1, VERSION + 2))
      answer[#answer + 1] = session
      answer[#answer + 1] = string.sub(kept, VERSION + 3 + length)
      count = count + 1
    end
  end
  answer[place] = tostring(count)
end
return answer
