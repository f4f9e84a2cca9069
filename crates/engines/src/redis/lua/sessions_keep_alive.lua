-- Records that the writer of the shard vouches for it as of a time before now, by the clock of Redis. KEYS: meta. ARGV: that age in ms.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('HSET', KEYS[1], 'heard', string.format('%.0f', now - tonumber(ARGV[1])))
return 'done'
