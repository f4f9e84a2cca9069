-- The writer of the shard lives, and vouches for it as of so many ms ago by the clock of Redis. KEYS: meta. ARGV: how long ago.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('HSET', KEYS[1], 'heard', string.format('%.0f', now - tonumber(ARGV[1])))
return 'done'
