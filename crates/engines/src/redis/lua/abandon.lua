-- Releases a claim under which nothing was written, if it still belongs to the holder.
-- KEYS: the claim. ARGV: holder, bytes of a place, 'all' if the earlier tries are known to have written nothing either.
-- Returns 'done', or 'other' if the claim belongs to another holder.
local holder, answer, places = unpack(redis.call('HMGET', KEYS[1], 'holder', 'answer', 'places'))
if holder ~= ARGV[1] or answer then
  return 'other'
end
local earlier = string.sub(places, 1, #places - tonumber(ARGV[2]))
if earlier == '' or ARGV[3] == 'all' then
  redis.call('DEL', KEYS[1])
else
  -- Earlier tries had lapsed when the holder took over the claim: the next claim searches for them at once. The claim gets no holder, so
  -- that neither a repeat of this call, nor a claim that lists the holder as dead, takes an earlier try for the holder's.
  redis.call('HSET', KEYS[1], 'places', earlier, 'held_at', '0', 'holder', '')
end
return 'done'
