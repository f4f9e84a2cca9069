-- Gives a claim up, where it is still the holder's: nothing was written under it.
-- KEYS: the claim. ARGV: holder, bytes of a place, 'all' where the earlier tries are known to have written nothing too.
-- Answers: 'done', or 'other' where the claim is not the holder's.
local holder, answer, places = unpack(redis.call('HMGET', KEYS[1], 'holder', 'answer', 'places'))
if holder ~= ARGV[1] or answer then
  return 'other'
end
local earlier = string.sub(places, 1, #places - tonumber(ARGV[2]))
if earlier == '' or ARGV[3] == 'all' then
  redis.call('DEL', KEYS[1])
else
  -- Earlier tries had lapsed when the holder took the claim over: the next claim looks for them at once. Without a holder, neither a
  -- repeat of this call nor a claim that knows the holder to be dead takes the place of an earlier try for the holder's.
  redis.call('HSET', KEYS[1], 'places', earlier, 'held_at', '0', 'holder', '')
end
return 'done'
