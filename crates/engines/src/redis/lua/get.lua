-- Looks up ids: pending holds first, then the ends, newest first.
-- KEYS: meta, rows, dead, the ring of ends. ARGV: ids.
-- Returns the applied offset, then for each id its kind ('p', 'd', 'e', or false) and its body.
local RING_FIRST = 4
local CHUNK = 2000

local applied, position = unpack(redis.call('HMGET', KEYS[1], 'applied', 'ends_position'))
position = tonumber(position or 0)
local ring = #KEYS - RING_FIRST + 1

-- The hashes in the order of the search: an end in a newer position of the ring takes precedence over an older one.
local places = { { 'p', KEYS[2] }, { 'd', KEYS[3] } }
for age = 0, ring - 1 do
  places[#places + 1] = { 'e', KEYS[RING_FIRST + (position - age) % ring] }
end

local answer = { applied or '0' }
for from = 1, #ARGV, CHUNK do
  local ids, slots = {}, {}
  for i = from, math.min(from + CHUNK - 1, #ARGV) do
    ids[#ids + 1], slots[#slots + 1] = ARGV[i], 2 * i
    answer[2 * i], answer[2 * i + 1] = false, false
  end
  for _, place in ipairs(places) do
    if #ids == 0 then
      break
    end
    local kind, key = unpack(place)
    local missing_ids, missing_slots = {}, {}
    for i, body in ipairs(redis.call('HMGET', key, unpack(ids))) do
      if body then
        answer[slots[i]], answer[slots[i] + 1] = kind, body
      else
        missing_ids[#missing_ids + 1], missing_slots[#missing_slots + 1] = ids[i], slots[i]
      end
    end
    ids, slots = missing_ids, missing_slots
  end
end
return answer
