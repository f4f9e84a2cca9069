-- Applies news of sessions, a gateway's whole picture, or a sweep of void sessions, in one step. Returns the effect on each user.
--
-- KEYS: meta, void, pictures, users, sessions, by_gateway, gone, gone_since, told, seen.
-- ARGV: the time (ms) and number of ended sessions that are remembered, the number of users whose last-seen time is remembered, the
-- operation, and then for
--   put      for each piece of news: session, user, version, end time or '', body
--   replace  gateway, version, then for each session: session, user, body
--   sweep    maximum number, now (ms)
-- A session is its node, incarnation and number: decimals of 5, 20 and 20 digits. Versions have 20 digits. So text sorts as the numbers do.
-- The stored value of a session is its version, the length of its user, its user, and the body.
-- Returns the version of this step, then for each user that it touched, in the order of first mention: user, was online, is online.
local META, VOID, PICTURES, USERS, SESSIONS, BY_GATEWAY, GONE, GONE_SINCE, TOLD, SEEN = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local NODE, GATEWAY, SESSION, VERSION = 5, 25, 45, 20
-- The maximum number of ended sessions that one step removes.
local FORGOTTEN_MAX = 2000
-- Sorts after every text with the same beginning.
local AFTER_ALL = '\255'

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local step = math.max(tonumber(redis.call('HGET', KEYS[META], 'version') or 0) + 1, now)
-- The first command is one that a full Redis refuses: then nothing was written. After it, Redis refuses none of a script.
redis.call('HSET', KEYS[META], 'version', string.format('%.0f', step))

local void_known, picture_known = {}, {}
local function known_of(cache, key, field)
  if cache[field] == nil then
    cache[field] = redis.call('HGET', KEYS[key], field)
  end
  return cache[field]
end
local function is_void(session)
  local newest = known_of(void_known, VOID, string.sub(session, 1, NODE))
  return newest and string.sub(session, NODE + 1, GATEWAY) <= newest
end

-- Users in the order of first mention, and for each user whether it was reported online, and the list of sessions.
local order, users = {}, {}
local function touch(uid)
  if not users[uid] then
    local list = redis.call('HGET', KEYS[USERS], uid) or ''
    users[uid] = { was = redis.call('SISMEMBER', KEYS[TOLD], uid) == 1, list = list, before = list }
    order[#order + 1] = uid
  end
  return users[uid]
end

local function see(uid, at)
  local before = redis.call('ZSCORE', KEYS[SEEN], uid)
  if not before or tonumber(before) < tonumber(at) then
    redis.call('ZADD', KEYS[SEEN], at, uid)
  end
end

local function owner_of(kept)
  local length = struct.unpack('>I2', string.sub(kept, VERSION + 1, VERSION + 2))
  return string.sub(kept, VERSION + 3, VERSION + 2 + length)
end

local function remove(uid, session)
  local user, rest = touch(uid), {}
  for from = 1, #user.list, SESSION do
    local each = string.sub(user.list, from, from + SESSION - 1)
    if each ~= session then
      rest[#rest + 1] = each
    end
  end
  user.list = table.concat(rest)
  redis.call('HDEL', KEYS[SESSIONS], session)
  redis.call('ZREM', KEYS[BY_GATEWAY], session)
end

local function come(uid, session, version, body)
  local gone = redis.call('HGET', KEYS[GONE], session)
  if gone and gone >= version then
    return
  end
  local known = redis.call('HGET', KEYS[SESSIONS], session)
  if known and string.sub(known, 1, VERSION) > version then
    return
  end
  redis.call('HSET', KEYS[SESSIONS], session, version .. struct.pack('>I2', #uid) .. uid .. body)
  if not known then
    local user = touch(uid)
    user.list = user.list .. session
    redis.call('ZADD', KEYS[BY_GATEWAY], '0', session)
  end
end

local function go(uid, session, version, at)
  local known, gone = redis.call('HGET', KEYS[SESSIONS], session), redis.call('HGET', KEYS[GONE], session)
  if (known and string.sub(known, 1, VERSION) > version) or (gone and gone > version) then
    return
  end
  remove(uid, session)
  see(uid, at)
  redis.call('HSET', KEYS[GONE], session, version)
  redis.call('ZADD', KEYS[GONE_SINCE], 'NX', string.format('%.0f', now), session)
end

local function put()
  for at = 5, #ARGV, 5 do
    local session, uid, version, gone_at, body = unpack(ARGV, at, at + 4)
    touch(uid)
    local picture = known_of(picture_known, PICTURES, string.sub(session, 1, GATEWAY))
    if not is_void(session) and not (picture and version < picture) then
      if gone_at == '' then
        come(uid, session, version, body)
      else
        go(uid, session, version, gone_at)
      end
    end
  end
end

local function replace()
  local gateway, version = ARGV[5], ARGV[6]
  local picture = known_of(picture_known, PICTURES, gateway)
  if is_void(gateway) or (picture and picture > version) then
    return
  end
  redis.call('HSET', KEYS[PICTURES], gateway, version)
  local listed = {}
  for at = 7, #ARGV, 3 do
    local session, uid, body = unpack(ARGV, at, at + 2)
    touch(uid)
    listed[session] = true
    come(uid, session, version, body)
  end
  local known = redis.call('ZRANGEBYLEX', KEYS[BY_GATEWAY], '[' .. gateway, '[' .. gateway .. AFTER_ALL)
  for _, session in ipairs(known) do
    local kept = not listed[session] and redis.call('HGET', KEYS[SESSIONS], session)
    if kept and string.sub(kept, 1, VERSION) < version then
      go(owner_of(kept), session, version, string.format('%.0f', now))
    end
  end
end

local function sweep()
  local left, swept_at = tonumber(ARGV[5]), ARGV[6]
  local void = redis.call('HGETALL', KEYS[VOID])
  for at = 1, #void, 2 do
    local node, newest = void[at], void[at + 1]
    local from, to = '[' .. node, '[' .. node .. newest .. AFTER_ALL
    local swept = left > 0 and redis.call('ZRANGEBYLEX', KEYS[BY_GATEWAY], from, to, 'LIMIT', 0, left) or {}
    left = left - #swept
    for _, session in ipairs(swept) do
      local kept = redis.call('HGET', KEYS[SESSIONS], session)
      if kept then
        local uid = owner_of(kept)
        remove(uid, session)
        see(uid, swept_at)
      else
        redis.call('ZREM', KEYS[BY_GATEWAY], session)
      end
    end
  end
end

local function forget_gone()
  local too_old = string.format('(%.0f', now - tonumber(ARGV[1]))
  local forgotten = redis.call('ZRANGEBYSCORE', KEYS[GONE_SINCE], '-inf', too_old, 'LIMIT', 0, FORGOTTEN_MAX)
  local more = redis.call('ZCARD', KEYS[GONE_SINCE]) - tonumber(ARGV[2])
  if #forgotten == 0 and more > 0 then
    forgotten = redis.call('ZRANGE', KEYS[GONE_SINCE], 0, math.min(more, FORGOTTEN_MAX) - 1)
  end
  if #forgotten > 0 then
    redis.call('HDEL', KEYS[GONE], unpack(forgotten))
    redis.call('ZREM', KEYS[GONE_SINCE], unpack(forgotten))
  end
end

forget_gone()
local acts = { put = put, replace = replace, sweep = sweep }
acts[ARGV[4]]()

local answer = { string.format('%.0f', step) }
for _, uid in ipairs(order) do
  local user, is_online = users[uid], false
  for from = 1, #user.list, SESSION do
    is_online = is_online or not is_void(string.sub(user.list, from, from + SESSION - 1))
  end
  if user.list == '' and user.before ~= '' then
    redis.call('HDEL', KEYS[USERS], uid)
  elseif user.list ~= user.before then
    redis.call('HSET', KEYS[USERS], uid, user.list)
  end
  if is_online ~= user.was then
    redis.call(is_online and 'SADD' or 'SREM', KEYS[TOLD], uid)
  end
  local last = #answer
  answer[last + 1], answer[last + 2], answer[last + 3] = uid, user.was and '1' or '0', is_online and '1' or '0'
end
local unseen = redis.call('ZCARD', KEYS[SEEN]) - tonumber(ARGV[3])
if unseen > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[SEEN], 0, unseen - 1)
end
return answer
