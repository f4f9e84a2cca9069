-- Removes all keys of a shard in one step. Returns the number of removed keys. KEYS: every key of the shard.
return redis.call('UNLINK', unpack(KEYS))
