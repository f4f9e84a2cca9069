-- Claims a publish under a key or an id.
-- KEYS: the claim. ARGV: fingerprint, holder, place (partition and end), now, lease, window (in ms), then holders of the caller that are
-- known to have written nothing.
-- The clock of Redis decides whether a claim has lapsed: the clocks of two callers may differ by more than a lease. The caller's clock,
-- which dates answers, decides about windows.
-- Returns 'new', 'different', 'under_way', 'earlier' with the answer, or 'lapsed' with the places of earlier tries.
local fingerprint, answer, answered_at, holder, held_at, first_at, places =
  unpack(redis.call('HMGET', KEYS[1], 'fingerprint', 'answer', 'answered_at', 'holder', 'held_at', 'first_at', 'places'))
local now, lease, window = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local clock = time[1] * 1000 + math.floor(time[2] / 1000)

if answer and tonumber(answered_at) >= now - window then
  if fingerprint ~= ARGV[1] then
    return { 'different' }
  end
  return { 'earlier', answer }
end
-- An answer that is too old counts as absent. Redis expires it by its own clock a little later.
local tried = holder and not answer
local dead = false
for index = 7, #ARGV do
  dead = dead or holder == ARGV[index]
end
if tried and dead then
  -- The try of a dead holder counts as absent. Earlier tries had lapsed when it took over the claim.
  places = string.sub(places, 1, #places - #ARGV[3])
  tried = places ~= ''
end
if tried and fingerprint ~= ARGV[1] then
  return { 'different' }
end
-- A client whose connection broke repeats a call that may have arrived.
local again = tried and holder == ARGV[2]
if tried and not again and not dead and tonumber(held_at) > clock - lease then
  return { 'under_way' }
end
-- The window begins with the first try. A try whose outcome stayed unknown for the whole window counts as absent.
first_at = tonumber(first_at or ARGV[4])
if tried and not again and first_at < now - window - lease then
  tried = false
end
if not tried then
  redis.call('DEL', KEYS[1])
  places = ''
  first_at = now
end
if not again then
  redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'holder', ARGV[2], 'held_at', string.format('%.0f', clock),
    'first_at', string.format('%.0f', first_at), 'places', places .. ARGV[3])
  redis.call('PEXPIRE', KEYS[1], window + lease)
else
  places = string.sub(places, 1, #places - #ARGV[3])
end
if places == '' then
  return { 'new' }
end
return { 'lapsed', places }
