-- One atomic write, checked against the epoch and the offset. Redis runs one script at a time and writes its effects to the append-only
-- file and to the replicas as one transaction.
--
-- KEYS: meta, rows, due, topic_due, counts, minutes, dead, dead_due, dead_topic_due, dead_since, then the ring of ends.
-- ARGV: epoch, expected, applied, '1' to reset, now, the time of one position of the ring, the retention of dead holds (in ms), the numbers
-- of puts, ends, dead, rows to remove, rows to add and counts, and then those:
--   puts (id, row)  ends (id, end)  dead (id, place and end)  rows to remove (place and id)  rows to add (the same)
--   counts (topic and minute, difference)
-- A place is the topic's number (4 bytes) and the due time (8 bytes); both sort by their bytes as the numbers do. Members of an index by
-- topic are a place and an id. Members of an index by time are those without their first 4 bytes.
local META, ROWS, DUE, TOPIC_DUE, COUNTS, MINUTES = 1, 2, 3, 4, 5, 6
local DEAD, DEAD_DUE, DEAD_TOPIC_DUE, DEAD_SINCE, RING_FIRST = 7, 8, 9, 10, 11
-- The maximum number of ARGV values in one command. With scores between them there are twice as many; Lua's stack takes about 8 000.
local CHUNK = 2000
local TOPIC_BYTES, PLACE_BYTES = 4, 12
-- The maximum number of expired dead holds that one write removes.
local FORGOTTEN_MAX = 2000

local epoch, applied, position, began =
  unpack(redis.call('HMGET', KEYS[META], 'epoch', 'applied', 'ends_position', 'ends_began'))
if epoch and ARGV[1] < epoch then
  return { 'older_epoch' }
end
-- An absent offset is zero. The writer formats zero with its full width.
if (applied or string.rep('0', #ARGV[2])) ~= ARGV[2] then
  return { 'behind', applied or '0' }
end

local now, ring_time, dead_time = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
position, began = tonumber(position or 0), tonumber(began or now)
local ring = #KEYS - RING_FIRST + 1

-- A full Redis rejects the first command, and then nothing was written. After it, Redis rejects no command of the script.
redis.call('HSET', KEYS[META], 'epoch', ARGV[1], 'applied', ARGV[3])
if ARGV[4] == '1' then
  -- UNLINK removes keys of any size at once and frees them in the background.
  redis.call('UNLINK', unpack(KEYS, 2))
  began = now
end

-- The ring turns with time. The ends in its next position are older than the time for which ends are remembered.
local turns = 0
while now - began >= ring_time and turns < ring do
  position, began, turns = (position + 1) % ring, began + ring_time, turns + 1
  redis.call('UNLINK', KEYS[RING_FIRST + position])
end
if turns == ring then
  began = now
end
redis.call('HSET', KEYS[META], 'ends_position', position, 'ends_began', string.format('%.0f', began))
local ends_now = KEYS[RING_FIRST + position]

-- Calls `act(from, to)` for ranges of ARGV that fit into one command, each a multiple of `width`, and moves past them.
local at = 14
local function in_chunks(items, width, act)
  local last = at + items * width - 1
  local stretch = CHUNK - CHUNK % width
  while at <= last do
    local to = math.min(at + stretch - 1, last)
    act(at, to)
    at = to + 1
  end
end

local function ids_between(from, to)
  local ids = {}
  for i = from, to, 2 do
    ids[#ids + 1] = ARGV[i]
  end
  return ids
end

-- Adds members `from` to `to` of a list to an index by time and to the index by topic, or removes them.
local function index(command, by_time, by_topic, members, from, to)
  local times, topics, last = {}, {}, 0
  for i = from, to do
    if command == 'ZADD' then
      last = last + 1
      times[last], topics[last] = '0', '0'
    end
    last = last + 1
    times[last], topics[last] = string.sub(members[i], TOPIC_BYTES + 1), members[i]
  end
  redis.call(command, by_time, unpack(times))
  redis.call(command, by_topic, unpack(topics))
end

local function forget_dead(ids)
  local found, members, gone = redis.call('HMGET', KEYS[DEAD], unpack(ids)), {}, {}
  for i, id in ipairs(ids) do
    if found[i] then
      gone[#gone + 1] = id
      members[#members + 1] = string.sub(found[i], 1, PLACE_BYTES) .. id
    end
  end
  if #gone > 0 then
    index('ZREM', KEYS[DEAD_DUE], KEYS[DEAD_TOPIC_DUE], members, 1, #members)
    redis.call('ZREM', KEYS[DEAD_SINCE], unpack(gone))
    redis.call('HDEL', KEYS[DEAD], unpack(gone))
  end
end

local has_dead = redis.call('EXISTS', KEYS[DEAD]) == 1
local puts, ends, dead, removed, added, counts = unpack(ARGV, 8, 13)

in_chunks(tonumber(puts), 2, function(from, to)
  redis.call('HSET', KEYS[ROWS], unpack(ARGV, from, to))
  if has_dead then
    forget_dead(ids_between(from, to))
  end
end)

in_chunks(tonumber(ends), 2, function(from, to)
  local ids = ids_between(from, to)
  redis.call('HDEL', KEYS[ROWS], unpack(ids))
  redis.call('HSET', ends_now, unpack(ARGV, from, to))
  if has_dead then
    forget_dead(ids)
  end
end)

in_chunks(tonumber(dead), 2, function(from, to)
  local ids = ids_between(from, to)
  redis.call('HDEL', KEYS[ROWS], unpack(ids))
  if has_dead then
    forget_dead(ids)
  end
  local members, since = {}, {}
  for i = from, to, 2 do
    members[#members + 1] = string.sub(ARGV[i + 1], 1, PLACE_BYTES) .. ARGV[i]
    since[#since + 1], since[#since + 2] = ARGV[5], ARGV[i]
  end
  redis.call('HSET', KEYS[DEAD], unpack(ARGV, from, to))
  index('ZADD', KEYS[DEAD_DUE], KEYS[DEAD_TOPIC_DUE], members, 1, #members)
  redis.call('ZADD', KEYS[DEAD_SINCE], unpack(since))
end)

in_chunks(tonumber(removed), 1, function(from, to)
  index('ZREM', KEYS[DUE], KEYS[TOPIC_DUE], ARGV, from, to)
end)

in_chunks(tonumber(added), 1, function(from, to)
  index('ZADD', KEYS[DUE], KEYS[TOPIC_DUE], ARGV, from, to)
end)

in_chunks(tonumber(counts), 2, function(from, to)
  local minutes = ids_between(from, to)
  local before = redis.call('HMGET', KEYS[COUNTS], unpack(minutes))
  local changed, new, gone = {}, {}, {}
  for i, minute in ipairs(minutes) do
    local count = tonumber(before[i] or 0) + tonumber(ARGV[from + 2 * i - 1])
    if count == 0 then
      gone[#gone + 1] = minute
    else
      changed[#changed + 1], changed[#changed + 2] = minute, count
    end
    if not before[i] then
      new[#new + 1], new[#new + 2] = '0', minute
    end
  end
  if #new > 0 then
    redis.call('ZADD', KEYS[MINUTES], unpack(new))
  end
  if #changed > 0 then
    redis.call('HSET', KEYS[COUNTS], unpack(changed))
  end
  if #gone > 0 then
    redis.call('HDEL', KEYS[COUNTS], unpack(gone))
    redis.call('ZREM', KEYS[MINUTES], unpack(gone))
  end
end)

local too_old = string.format('(%.0f', now - dead_time)
local forgotten = redis.call('ZRANGEBYSCORE', KEYS[DEAD_SINCE], '-inf', too_old, 'LIMIT', 0, FORGOTTEN_MAX)
if #forgotten > 0 then
  forget_dead(forgotten)
end
return { 'done' }
